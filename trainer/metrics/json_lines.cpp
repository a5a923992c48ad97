#include "trainer/metrics/json_lines.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/base/durable_file.h"
#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::metrics {
namespace {

constexpr int kMaxDepth = 16;

bool is_kept(const nlohmann::ordered_json& record, const KeptSteps& kept) {
  const int64_t last = record.contains(kEvalKey) ? kept.last_evaluation
      : record.contains(kRoundKey)               ? kept.last_round
                                                 : kept.last_step;
  return record_step(record).value_or(0) <= last;
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

} // namespace

losses::MetricQuality recorded_quality(const nlohmann::ordered_json& values, const std::string& name) {
  const auto listed = [&](const char* key) {
    const auto names = values.find(key);
    return names != values.end() && std::find(names->begin(), names->end(), name) != names->end();
  };
  return listed(kLowerBoundsKey) ? losses::MetricQuality::kLowerBound
      : listed(kEstimatesKey)    ? losses::MetricQuality::kEstimate
                                 : losses::MetricQuality::kExact;
}

const char* quality_text(const nlohmann::ordered_json& values, const std::string& name) {
  switch (recorded_quality(values, name)) {
    case losses::MetricQuality::kLowerBound:
      return "  (lower bound)";
    case losses::MetricQuality::kEstimate:
      return "  (estimate)";
    default:
      return "";
  }
}

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
  const auto step = record.find(kStepKey);
  if (step == record.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return step->is_number_unsigned() ? static_cast<int64_t>(std::min(step->get<uint64_t>(), kMost))
                                    : step->get<int64_t>();
}

bool is_step_record(const nlohmann::ordered_json& record) {
  return !record.contains(kEvalKey) && !record.contains(kRoundKey);
}

absl::StatusOr<JsonLines> JsonLines::open(const std::string& path, const KeptSteps& steps) {
  ASSIGN_OR_RETURN(const std::string kept, kept_lines(path, steps));
  RETURN_IF_ERROR(base::replace_file(path, kept));
  ASSIGN_OR_RETURN(base::DurableFile file, base::DurableFile::append_to(path));
  return JsonLines(std::move(file));
}

absl::Status JsonLines::append(const std::string& line) {
  return file_.write(line + "\n");
}

} // namespace distill::metrics
