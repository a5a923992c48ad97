#include "trainer/run_folder/recorded_metrics.h"

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
        if (!found && metrics::is_step_record(record) && metrics::record_step(record) == step) {
          found = record;
        }
      });
  if (!status.ok()) {
    return status;
  }
  return found ? absl::StatusOr<Json>(*std::move(found))
               : absl::NotFoundError(absl::StrCat(metrics_file(run_dir), ": holds no step ", step));
}

// The number with this name; NaN: there is none.
double number_at(const Json& object, const char* name) {
  const auto value = object.find(name);
  return value != object.end() && value->is_number() ? value->get<double>() : std::nan("");
}

// Whether the value differs from run to run: times, speed, memory, and gathers, of which the first step of a process
// has more.
bool is_time(const std::string& name) {
  constexpr const char* kTimes[] = {"seconds",        "phase_seconds", "tokens_per_second",       "peak_memory_bytes",
                                    "mfu_causal",     "mfu_full",      "peak_reserved_bytes",     "gathers",
                                    "gathered_bytes", "teacher_read",  "outside_allocator_bytes", metrics::kTimeKey};
  return std::find(std::begin(kTimes), std::end(kTimes), name) != std::end(kTimes);
}

} // namespace

absl::Status for_each_recorded_means(
    const std::string& run_dir, const metrics::KeptSteps& kept,
    const std::function<void(const RecordedMeans&)>& visit) {
  return metrics::for_each_record(metrics_file(run_dir), [&](const std::string&, const Json& record) {
    const auto eval = record.find(metrics::kEvalKey);
    const bool evaluation = eval != record.end();
    const auto step = metrics::record_step(record);
    if (!step || record.contains(metrics::kRoundKey) || *step > (evaluation ? kept.last_evaluation : kept.last_step)) {
      return;
    }
    const Json& values = evaluation ? *eval : record;
    const auto valid_tokens = values.find("valid_tokens");
    const bool counted = valid_tokens != values.end() && valid_tokens->is_number();
    if (!values.is_object() || (counted && *valid_tokens == 0)) {
      return;
    }
    visit(
        {evaluation, number_at(values, "loss"), number_at(values, "hard"), number_at(values, "teacher_ce"),
         number_at(values, "forward_kl"),
         counted ? static_cast<int64_t>(std::clamp(valid_tokens->get<double>(), 0.0, 1e15)) : 0});
  });
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
