#include "trainer/tools/evaluate_model.h"

#include <absl/strings/str_join.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/evaluator.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/teacher_check.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/step/head_plan.h"
#include "trainer/step/loaded_models.h"

namespace distill::trainer {
namespace {

std::string describe(const config::Config& config, const Environment& environment, const Inputs& inputs) {
  std::vector<std::string> teachers;
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  for (size_t i = 0; i < configs.size() && inputs.teachers.exist(); ++i) {
    const TeacherSpec& teacher = inputs.teachers[i];
    teachers.push_back(absl::StrFormat(
        "teacher %s%s (%s)", config.has_list() ? config.teachers[i].name + ": " : "", teacher.folder(),
        models::precision_text(teacher.model().config, environment_of_teacher(configs[i], environment).teacher_dtype)));
  }
  return absl::StrFormat(
      "%s, sequences of %d tokens, %s on %s, %s", config.student.path, config.data.seq_len,
      models::precision_text(inputs.student.config, environment.student_dtype), environment.device.str(),
      teachers.empty() ? "no teacher: the loss is the cross-entropy on the labels" : absl::StrJoin(teachers, ", "));
}

} // namespace

absl::StatusOr<EvalReport> evaluate_model(config::Config config) {
  RETURN_IF_ERROR(settle_teacher_sequences(config.train.micro_batch_size, config));
  ASSIGN_OR_RETURN(Environment environment, resolve_environment(config));
  configure_libtorch(config.train, environment);
  ASSIGN_OR_RETURN(const Inputs inputs, open_inputs(config, environment, config::Purpose::kEvaluate));
  RETURN_IF_ERROR(check_cache_head(config));
  const LoadOptions load{.progress = config.run.progress};
  FrozenModels frozen(config, environment, inputs.teachers, [&](bool) { return load; });
  ASSIGN_OR_RETURN(const auto base, frozen.base_of_student(inputs.student));
  ASSIGN_OR_RETURN(const auto student, load_model(environment, inputs.student, Role::kFrozenStudent, load, base));
  std::vector<LoadedTeacher> teachers;
  for (size_t i = 0; i < inputs.teachers.size(); ++i) {
    LoadedTeacher& teacher = teachers.emplace_back(LoadedTeacher{inputs.teachers[i], {}});
    for (auto& model : frozen.load_teacher(i)) {
      ASSIGN_OR_RETURN(teacher.weights.emplace_back(), std::move(model));
    }
  }
  const launch::StopSignal stop("ending the evaluation without a result, then exit code 1");
  const auto start = std::chrono::steady_clock::now();
  MicroBatchRunner micro(
      config, *student, teachers, /*memory=*/{},
      models::BlockFunctions{.tile_tokens = config.memory.forward_tile_tokens()});
  ASSIGN_OR_RETURN(
      const EvaluationResult result,
      evaluate_dataset(
          micro, inputs.eval_data, config.train.micro_batch_size, config.eval.batches, sharding::Mesh{},
          {.asked_to_stop = [&stop] { return stop.received() != 0; }, .progress = config.run.progress}));
  if (result.interrupted) {
    return absl::CancelledError(absl::StrFormat("evaluation stopped by signal %d", stop.received()));
  }
  if (result.means.valid_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data.eval: expected tokens with a target, found none in its %d sequences%s; there is nothing to measure",
        result.samples, config.eval.batches > 0 ? absl::StrFormat(" (eval.batches: %d)", config.eval.batches) : ""));
  }
  if (inputs.teachers.exist()) {
    const auto& means = result.means.metrics;
    if (const auto found = metrics::TeacherCheck().evaluation(
            means[losses::kHard], means[losses::kTeacherCe], result.means.valid_tokens)) {
      metrics::log_warning(metrics::describe(*found, "data.eval"));
    }
  }
  EvalReport report;
  report.what = describe(config, environment, inputs);
  report.means = result.means;
  report.teachers = result.teachers;
  report.samples = result.samples;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string EvalReport::text() const {
  std::string text = absl::StrFormat(
      "%s\n%d sequences, %d tokens with a target, %.1f s\n", what, samples, means.valid_tokens, seconds);
  const auto values = nlohmann::ordered_json::parse(json());
  for (const auto& [name, value] : values.items()) {
    if (value.is_number_float()) {
      absl::StrAppendFormat(&text, "  %-18s %.6g%s\n", name, value.get<double>(), metrics::quality_text(values, name));
    }
  }
  for (const metrics::TeacherMeans& teacher : teachers) {
    absl::StrAppendFormat(&text, "  of the teacher %s, %d tokens:\n", teacher.name, teacher.means.valid_tokens);
    const auto own = values.contains(metrics::kTeachersKey) && values[metrics::kTeachersKey].contains(teacher.name)
        ? values[metrics::kTeachersKey][teacher.name]
        : nlohmann::ordered_json::object();
    for (const auto& [name, value] : own.items()) {
      if (value.is_number_float()) {
        absl::StrAppendFormat(&text, "    %-18s %.6g%s\n", name, value.get<double>(), metrics::quality_text(own, name));
      }
    }
  }
  absl::StrAppendFormat(&text, "  %-18s %.6g\n", "perplexity", std::exp(means.metrics[losses::kHard]));
  return text;
}

std::string EvalReport::json() const {
  return metrics::means_json(means, teachers);
}

} // namespace distill::trainer
