#include "trainer/run_folder/journal.h"

#include <cstdio>

#include "data/base/status_macros.h"
#include "trainer/config/dump.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/step_line.h"

namespace distill::trainer {
namespace {

constexpr int64_t kEmptyStepsForAWarning = 100;

// The first step without a target, and then every hundredth of them.
void warn_of_empty_step(const metrics::StepRecord& record) {
  if (record.empty() && record.empty_steps % kEmptyStepsForAWarning == 1) {
    metrics::log_warning(absl::StrFormat(
        "step %d: no token of its %d samples (%d to %d) has a target: nothing was learned from them and no weight was "
        "changed; steps like this so far: %d",
        record.step, record.num_samples, record.first_sample, record.first_sample + record.num_samples - 1,
        record.empty_steps));
  }
}

} // namespace

absl::StatusOr<RunJournal> RunJournal::open(
    const config::Config& config, bool is_main, const metrics::KeptSteps& kept_steps) {
  RunJournal journal;
  journal.is_main_ = is_main;
  if (!is_main) {
    return journal;
  }
  const std::string& dir = config.run.dir;
  metrics::open_log_file(dir + "/log.txt");
  RETURN_IF_ERROR(config::write_config(config, dir + "/config.yaml"));
  ASSIGN_OR_RETURN(journal.metrics_, metrics::JsonLines::open(dir + "/metrics.jsonl", kept_steps));
  ASSIGN_OR_RETURN(journal.events_, RunEvents::open(dir, kept_steps.last_step, config.train.spike_sigmas));
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

absl::Status RunJournal::step(const metrics::StepRecord& record) {
  if (!is_main_) {
    return absl::OkStatus();
  }
  progress_->step(record);
  check_progress();
  metrics::log_to_file(metrics::step_line(record));
  RETURN_IF_ERROR(metrics_->append(metrics::step_json(record)));
  warn_of_empty_step(record);
  const auto event = events_->step(record);
  if (event.ok() && !event->empty()) {
    metrics::log_warning(*event);
  }
  return event.status();
}

absl::Status RunJournal::evaluation(int64_t step, const metrics::LossMeans& means) {
  message(metrics::eval_line(step, means));
  if (is_main_ && means.valid_tokens == 0) {
    metrics::log_warning(absl::StrFormat(
        "evaluation after step %d: no token of data.eval has a target, so that nothing was measured", step));
  }
  return is_main_ ? metrics_->append(metrics::eval_json(step, means)) : absl::OkStatus();
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

void RunJournal::message(const std::string& line) {
  if (is_main_) {
    progress_->message(line);
    check_progress();
    metrics::log_to_file(line);
  }
}

} // namespace distill::trainer
