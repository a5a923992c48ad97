#include "trainer/metrics/jsonl.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace distill::metrics {
namespace {

// Bytes at the file's start that hold whole lines of steps up to last_step.
std::string kept_lines(const std::string& path, int64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const bool torn = file.eof(); // no newline at its end
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (torn || !json.is_object() || json.value("step", int64_t{0}) > last_step) {
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

absl::StatusOr<JsonLines> JsonLines::open(const std::string& path, int64_t last_step) {
  const std::string kept = kept_lines(path, last_step);
  const std::string partial = path + ".partial";
  JsonLines lines;
  lines.path_ = path;
  lines.file_.reset(std::fopen(partial.c_str(), "wb"));
  if (!lines.file_) {
    return file_error(partial, "create");
  }
  if (std::fwrite(kept.data(), 1, kept.size(), lines.file_.get()) != kept.size() ||
      std::fflush(lines.file_.get()) != 0) {
    return file_error(partial, "write");
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return file_error(path, "replace");
  }
  return lines;
}

absl::Status JsonLines::append(const std::string& line) {
  const std::string whole = line + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), file_.get()) != whole.size() || std::fflush(file_.get()) != 0) {
    return file_error(path_, "write");
  }
  return absl::OkStatus();
}

} // namespace distill::metrics
