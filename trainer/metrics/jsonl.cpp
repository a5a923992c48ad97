#include "trainer/metrics/jsonl.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace distill::metrics {
namespace {

bool is_kept(const nlohmann::json& line, const KeptSteps& kept) {
  if (!line.is_object()) {
    return false;
  }
  const auto step = line.find("step");
  const int64_t number = step != line.end() && step->is_number_integer() ? step->get<int64_t>() : 0;
  return number <= (line.contains("eval") ? kept.last_evaluation : kept.last_step);
}

// The whole lines that stay.
std::string kept_lines(const std::string& path, const KeptSteps& steps) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const bool torn = file.eof(); // no newline at its end
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (torn || !is_kept(json, steps)) {
      continue;
    }
    kept += line + "\n";
  }
  return kept;
}

absl::Status file_error(const std::string& path, const char* action) {
  return absl::InternalError(absl::StrCat(path, ": cannot ", action, ": ", std::strerror(errno)));
}

} // namespace

absl::StatusOr<JsonLines> JsonLines::open(const std::string& path, const KeptSteps& steps) {
  const std::string kept = kept_lines(path, steps);
  const std::string partial = path + ".partial";
  JsonLines lines;
  lines.path_ = path;
  lines.file_.reset(std::fopen(partial.c_str(), "wb"));
  if (!lines.file_) {
    return file_error(partial, "create");
  }
  if (std::fwrite(kept.data(), 1, kept.size(), lines.file_.get()) != kept.size() ||
      std::fflush(lines.file_.get()) != 0 || ::fsync(::fileno(lines.file_.get())) != 0) {
    return file_error(partial, "write");
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return file_error(path, "replace");
  }
  return lines;
}

absl::Status JsonLines::sync() const {
  return ::fsync(::fileno(file_.get())) == 0 ? absl::OkStatus() : file_error(path_, "sync");
}

absl::Status JsonLines::append(const std::string& line) {
  const std::string whole = line + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), file_.get()) != whole.size() || std::fflush(file_.get()) != 0) {
    return file_error(path_, "write");
  }
  return absl::OkStatus();
}

} // namespace distill::metrics
