#include "trainer/run_folder/records.h"

#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/metrics/json_lines.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

std::string metrics_file(const std::string& run_dir) {
  return run_dir + "/metrics.jsonl";
}

// A step's first record in metrics.jsonl.
absl::StatusOr<Json> recorded_step(const std::string& run_dir, int64_t step) {
  std::optional<Json> found;
  const absl::Status status =
      metrics::for_each_record(metrics_file(run_dir), [&](const std::string&, const Json& record) {
        if (!found && !record.contains("eval") && metrics::record_step(record) == step) {
          found = record;
        }
      });
  if (!status.ok()) {
    return status;
  }
  return found ? absl::StatusOr<Json>(*std::move(found))
               : absl::NotFoundError(absl::StrCat(metrics_file(run_dir), ": holds no step ", step));
}

// Whether the value differs from run to run: times, speed and memory.
bool is_time(const std::string& name) {
  constexpr const char* kTimes[] = {"seconds",    "phase_seconds", "tokens_per_second",  "peak_memory_bytes",
                                    "mfu_causal", "mfu_full",      "peak_reserved_bytes"};
  return std::find(std::begin(kTimes), std::end(kTimes), name) != std::end(kTimes);
}

} // namespace

absl::StatusOr<std::vector<double>> recorded_losses(const std::string& run_dir, int64_t last_step) {
  std::vector<double> losses;
  const absl::Status status =
      metrics::for_each_record(metrics_file(run_dir), [&](const std::string&, const Json& record) {
        const auto loss = record.find("loss");
        const auto valid_tokens = record.find("valid_tokens");
        const auto step = metrics::record_step(record);
        const bool has_targets = valid_tokens == record.end() || *valid_tokens != 0;
        if (step && *step <= last_step && loss != record.end() && loss->is_number() && has_targets) {
          losses.push_back(loss->get<double>());
        }
      });
  return status.ok() ? absl::StatusOr<std::vector<double>>(std::move(losses)) : status;
}

absl::StatusOr<std::string> compare_recorded_steps(
    const std::string& run_dir, const std::string& other_dir, int64_t step) {
  ASSIGN_OR_RETURN(const Json recorded, recorded_step(run_dir, step));
  ASSIGN_OR_RETURN(const Json replayed, recorded_step(other_dir, step));
  std::string text;
  for (const auto& [name, value] : recorded.items()) {
    const Json again = replayed.contains(name) ? replayed[name] : Json();
    if (!is_time(name) && value != again) {
      absl::StrAppend(&text, "  ", name, ": recorded ", value.dump(), ", replayed ", again.dump(), "\n");
    }
  }
  return text.empty() ? absl::StrCat("step ", step, ": the replay equals the record, bit for bit\n")
                      : absl::StrCat("step ", step, ": the replay differs from the record:\n", text);
}

} // namespace distill::trainer
