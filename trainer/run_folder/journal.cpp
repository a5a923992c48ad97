#include "trainer/run_folder/journal.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/config/dump.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/step_line.h"
#include "trainer/metrics/wall_clock.h"

namespace distill::trainer {
namespace {

constexpr int64_t kEmptyStepsForAWarning = 100;

// Warns of the first step in which no token has a target, and then of every hundredth.
void warn_of_empty_step(const metrics::StepMetrics& record) {
  if (record.empty() && record.empty_steps % kEmptyStepsForAWarning == 1) {
    metrics::log_warning(absl::StrFormat(
        "step %d: no token of its %d samples (%d to %d) has a target: nothing was learned from them and no weight was "
        "changed; steps like this so far: %d",
        record.step, record.num_samples, record.first_sample, record.first_sample + record.num_samples - 1,
        record.empty_steps));
  }
}

void log_warnings(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    metrics::log_warning(line);
  }
}

// Without run.tensorboard, event files of an earlier part of the run lose the points that metrics.jsonl has lost.
absl::StatusOr<std::optional<metrics::Tensorboard>> open_tensorboard(
    const config::RunSection& run, const metrics::KeptSteps& kept_steps) {
  const std::string folder = run.dir + "/tensorboard";
  std::error_code error;
  std::optional<metrics::Tensorboard> tensorboard;
  if (run.tensorboard || std::filesystem::exists(folder, error)) {
    ASSIGN_OR_RETURN(tensorboard, metrics::Tensorboard::open(folder, run.dir + "/metrics.jsonl", kept_steps));
  }
  if (!run.tensorboard) {
    tensorboard.reset();
  }
  return tensorboard;
}

} // namespace

absl::StatusOr<RunJournal> RunJournal::open(
    const config::Config& config, bool is_main, const metrics::KeptSteps& kept_steps, double float8_error) {
  RunJournal journal;
  journal.is_main_ = is_main;
  if (!is_main) {
    return journal;
  }
  const std::string& dir = config.run.dir;
  metrics::open_log_file(dir + "/log.txt");
  RETURN_IF_ERROR(config::write_config(config, dir + "/config.yaml"));
  ASSIGN_OR_RETURN(journal.metrics_, metrics::JsonLines::open(dir + "/metrics.jsonl", kept_steps));
  ASSIGN_OR_RETURN(journal.events_, RunEvents::open(dir, kept_steps, config.train.spike_sigmas, float8_error));
  ASSIGN_OR_RETURN(journal.tensorboard_, open_tensorboard(config.run, kept_steps));
  if (journal.tensorboard_) {
    metrics::log_info("TensorBoard: tensorboard --logdir " + dir);
  }
  const std::string samples = dir + "/samples.jsonl";
  std::error_code error;
  if (config.eval.samples > 0 || std::filesystem::exists(samples, error)) {
    const int64_t last = kept_steps.last_evaluation;
    ASSIGN_OR_RETURN(journal.samples_, metrics::JsonLines::open(samples, {last, last}));
  }
  journal.progress_ = std::make_unique<metrics::ProgressPrinter>(config.run.progress, config.run.log_every);
  return journal;
}

void RunJournal::info(const std::string& line) {
  if (is_main_) {
    metrics::log_info(line);
  }
}

void RunJournal::warning(const std::string& line) {
  if (is_main_) {
    metrics::log_warning(line);
  }
}

absl::Status RunJournal::step(const metrics::StepMetrics& record) {
  if (!is_main_) {
    return absl::OkStatus();
  }
  progress_->step(record);
  check_progress();
  metrics::log_to_file(metrics::step_line(record));
  RETURN_IF_ERROR(append(metrics::step_json(record)));
  warn_of_empty_step(record);
  ASSIGN_OR_RETURN(const std::vector<std::string> events, events_->step(record));
  log_warnings(events);
  return absl::OkStatus();
}

absl::Status RunJournal::evaluation(
    int64_t step, const metrics::LossMeans& means, absl::Span<const metrics::TeacherMeans> teachers) {
  message(metrics::eval_line(step, means, teachers));
  if (!is_main_) {
    return absl::OkStatus();
  }
  if (means.valid_tokens == 0) {
    metrics::log_warning(absl::StrFormat(
        "evaluation after step %d: no token of data.eval has a target, so that nothing was measured", step));
  }
  RETURN_IF_ERROR(append(metrics::eval_json(step, means, teachers)));
  ASSIGN_OR_RETURN(const std::vector<std::string> events, events_->evaluation(step, means));
  log_warnings(events);
  return absl::OkStatus();
}

absl::Status RunJournal::round(int64_t step, const nlohmann::ordered_json& values) {
  return is_main_ ? append({{metrics::kStepKey, step}, {metrics::kRoundKey, values}}) : absl::OkStatus();
}

absl::Status RunJournal::text(const std::string& tag, int64_t step, const std::string& text) {
  return tensorboard_ ? tensorboard_->text(tag, step, text) : absl::OkStatus();
}

absl::Status RunJournal::append(nlohmann::ordered_json record) {
  record[metrics::kTimeKey] = metrics::wall_clock_ms();
  RETURN_IF_ERROR(metrics_->append(record.dump()));
  return tensorboard_ ? tensorboard_->append(record) : absl::OkStatus();
}

absl::Status RunJournal::sync() const {
  RETURN_IF_ERROR(metrics_ ? metrics_->sync() : absl::OkStatus());
  RETURN_IF_ERROR(events_ ? events_->sync() : absl::OkStatus());
  RETURN_IF_ERROR(samples_ ? samples_->sync() : absl::OkStatus());
  return tensorboard_ ? tensorboard_->sync() : absl::OkStatus();
}

absl::Status RunJournal::samples(const std::vector<std::string>& lines) {
  for (const std::string& line : is_main_ ? lines : std::vector<std::string>()) {
    RETURN_IF_ERROR(samples_->append(line));
  }
  return absl::OkStatus();
}

void RunJournal::check_progress() {
  if (progress_lost_ || std::ferror(stdout) == 0) {
    return;
  }
  progress_lost_ = true;
  progress_ = std::make_unique<metrics::ProgressPrinter>(config::ProgressStyle::kNone, 1);
  metrics::log_warning(
      "progress cannot be printed on standard output any more (its reader has gone, or its disk is full); training "
      "continues, log.txt and metrics.jsonl have every step");
}

void RunJournal::result(const std::string& line) {
  if (is_main_) {
    progress_->result(line);
    metrics::log_to_file(line);
  }
}

void RunJournal::message(const std::string& line) {
  if (is_main_) {
    progress_->message(line);
    check_progress();
    metrics::log_to_file(line);
  }
}

} // namespace distill::trainer
