#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "data/base/durable_file.h"
#include "losses/teacher_kind.h"

namespace distill::metrics {

// The keys of metrics.jsonl and events.jsonl that tell one kind of record from another.
inline constexpr const char* kStepKey = "step"; // the step that it describes or follows
// Names of the means that are lower bounds, or estimates, of the exact numbers (losses/teacher_kind.h), where there
// are.
inline constexpr const char* kLowerBoundsKey = "lower_bounds";
inline constexpr const char* kEstimatesKey = "estimates";
inline constexpr const char* kTeachersKey = "teachers"; // of several teachers, each one's means by its name
inline constexpr const char* kEvalKey = "eval"; // only in an evaluation: an object with its numbers
inline constexpr const char* kRoundKey = "round"; // only in the line of an on-policy round: an object with its numbers
inline constexpr const char* kTimeKey = "time_ms"; // when it was written, milliseconds since 1970 (UTC)

// Calls `visit` for every whole line of a JSON-lines file that is an object, in order, with its text and parsed. All
// other lines are skipped, a torn last line among them. A missing file has no lines. The content is not trusted (see
// base::parse_json). Internal: the file cannot be read to its end.
absl::Status for_each_record(
    const std::string& path,
    const std::function<void(const std::string& line, const nlohmann::ordered_json& record)>& visit);

// The record's "step"; nullopt: it has none.
std::optional<int64_t> record_step(const nlohmann::ordered_json& record);

// Whether the record is a step's: neither an evaluation's nor a round's.
bool is_step_record(const nlohmann::ordered_json& record);

// The quality of the mean `name` of a step's or an evaluation's object, by the object's lists of lower bounds and
// estimates.
losses::MetricQuality recorded_quality(const nlohmann::ordered_json& values, const std::string& name);
// Returns a text on the quality for a reader, behind the number: "  (lower bound)", "  (estimate)"; empty: it is exact.
const char* quality_text(const nlohmann::ordered_json& values, const std::string& name);

// The records of an earlier part of the run that are kept when it is resumed.
struct KeptSteps {
  int64_t last_step = 0; // of steps
  int64_t last_evaluation = -1; // of evaluations: the step that they follow
  int64_t last_round = -1; // of on-policy rounds: the steps done before them
};

// A JSON-lines file that is appended to. Every line is written as a whole, so that a killed run leaves at
// most one torn line.
class JsonLines {
 public:
  // Opens the file for appending. Records that are not kept and a torn last line are removed first, so that a resumed
  // run holds every step and every evaluation once. On an error the file is left as it was.
  static absl::StatusOr<JsonLines> open(const std::string& path, const KeptSteps& kept);

  absl::Status append(const std::string& line);
  // When this returns ok, all appended lines are on the disk. May run on another thread than append().
  absl::Status sync() const {
    return file_.sync();
  }

 private:
  explicit JsonLines(base::DurableFile file) : file_(std::move(file)) {}

  base::DurableFile file_;
};

} // namespace distill::metrics
