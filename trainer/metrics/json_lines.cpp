#include "trainer/metrics/json_lines.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::metrics {
namespace {

constexpr int kMaxDepth = 16;

bool is_kept(const nlohmann::ordered_json& record, const KeptSteps& kept) {
  return record_step(record).value_or(0) <= (record.contains("eval") ? kept.last_evaluation : kept.last_step);
}

// The lines that are kept.
absl::StatusOr<std::string> kept_lines(const std::string& path, const KeptSteps& steps) {
  std::string kept;
  RETURN_IF_ERROR(for_each_record(path, [&](const std::string& line, const nlohmann::ordered_json& record) {
    if (is_kept(record, steps)) {
      kept += line + "\n";
    }
  }));
  return kept;
}

absl::Status file_error(const std::string& path, const char* action) {
  return absl::InternalError(absl::StrCat(path, ": cannot ", action, ": ", std::strerror(errno)));
}

} // namespace

absl::Status for_each_record(
    const std::string& path, const std::function<void(const std::string&, const nlohmann::ordered_json&)>& visit) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) {
    return absl::OkStatus();
  }
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return absl::InternalError(
        absl::StrCat(path, ": cannot open: ", error ? error.message() : std::string(std::strerror(errno))));
  }
  for (std::string line; std::getline(file, line) && !file.eof();) { // eof: a last line without its newline is torn
    const auto record = base::parse_json(line, path, kMaxDepth);
    if (record.ok() && record->is_object()) {
      visit(line, *record);
    }
  }
  return file.bad() ? absl::InternalError(absl::StrCat(path, ": cannot be read to its end")) : absl::OkStatus();
}

std::optional<int64_t> record_step(const nlohmann::ordered_json& record) {
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return step->is_number_unsigned() ? static_cast<int64_t>(std::min(step->get<uint64_t>(), kMost))
                                    : step->get<int64_t>();
}

absl::StatusOr<JsonLines> JsonLines::open(const std::string& path, const KeptSteps& steps) {
  ASSIGN_OR_RETURN(const std::string kept, kept_lines(path, steps));
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
