#include <chrono>
#include <nlohmann/json.hpp>

#include "trainer/evaluator.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/log.h"
#include "trainer/setup/inputs.h"
#include "trainer/trainer.h"

namespace distill::trainer {

absl::StatusOr<EvalReport> evaluate(const config::Config& config) {
  const auto environment = resolve_environment(config);
  if (!environment.ok()) {
    return environment.status();
  }
  configure_libtorch(config.train, environment->device);
  const auto inputs = open_inputs(config, *environment, config::Purpose::kEvaluate);
  if (!inputs.ok()) {
    return inputs.status();
  }
  const auto student = load_model(*environment, inputs->student, Role::kFrozenStudent);
  std::unique_ptr<sharding::ModelShards> teacher;
  if (inputs->teacher) {
    teacher = load_model(*environment, *inputs->teacher, Role::kTeacher);
  }
  const launch::StopSignal stop;
  const auto start = std::chrono::steady_clock::now();
  MicroStep micro(config, *student, teacher.get());
  const auto result = evaluate_dataset(
      micro, inputs->eval_data, config.train.micro_batch_size, config.eval.batches, inputs->teacher.has_value(),
      sharding::Mesh{}, {.asked_to_stop = [&stop] { return stop.received() != 0; }});
  if (!result.ok()) {
    return result.status();
  }
  if (result->interrupted) {
    return absl::CancelledError(absl::StrFormat("evaluation stopped by signal %d", stop.received()));
  }
  EvalReport report;
  report.means = result->means;
  report.samples = result->samples;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string EvalReport::text() const {
  std::string text =
      absl::StrFormat("%d sequences, %d tokens with a target, %.1f s\n", samples, means.valid_tokens, seconds);
  const auto values = nlohmann::ordered_json::parse(json());
  for (const auto& [name, value] : values.items()) {
    if (value.is_number_float()) {
      absl::StrAppendFormat(&text, "  %-18s %.6g\n", name, value.get<double>());
    }
  }
  absl::StrAppendFormat(&text, "  %-18s %.6g\n", "perplexity", std::exp(means.rows[losses::kHard]));
  return text;
}

std::string EvalReport::json() const {
  return metrics::means_json(means);
}

} // namespace distill::trainer
