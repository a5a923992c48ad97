#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/progress_printer.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/metrics/tensorboard.h"
#include "trainer/run_folder/events.h"

namespace distill::trainer {

// The output of a run: progress on standard output; log.txt, metrics.jsonl, events.jsonl, samples.jsonl, config.yaml
// and with run.tensorboard an event file in the run folder. Ranks other than 0 write nothing. Standard output that
// cannot be written any more is reported once and ends nothing.
class RunJournal {
 public:
  // Removes the lines of the files that `kept_steps` does not include, so that a resumed run records each step once.
  // `float8_error`: see RunEvents::open.
  static absl::StatusOr<RunJournal> open(
      const config::Config& config, bool is_main, const metrics::KeptSteps& kept_steps, double float8_error = 0);

  void info(const std::string& line); // writes to the log
  void warning(const std::string& line);
  absl::Status step(const metrics::StepMetrics& record);
  absl::Status evaluation(
      int64_t step, const metrics::LossMeans& means, absl::Span<const metrics::TeacherMeans> teachers);
  // The numbers of an on-policy round that begins after `step` steps: a line of metrics.jsonl.
  absl::Status round(int64_t step, const nlohmann::ordered_json& values);
  // A text (Markdown) of the evaluation after `step` steps, for TensorBoard; ignored without run.tensorboard.
  absl::Status text(const std::string& tag, int64_t step, const std::string& text);
  // The lines of samples.jsonl of one evaluation of a run with eval.samples.
  absl::Status samples(const std::vector<std::string>& lines);
  void message(const std::string& line); // prints on standard output, as progress, and writes to log.txt
  void result(const std::string& line); // the same of what a command was asked for, whatever run.progress is
  // When this returns ok, all of these files are on the disk. May run on another thread than the other functions.
  absl::Status sync() const;

 private:
  absl::Status append(nlohmann::ordered_json record); // to metrics.jsonl and the event file, with the time
  void check_progress(); // after each print

  bool is_main_ = true;
  bool progress_lost_ = false;
  std::optional<metrics::JsonLines> metrics_;
  std::optional<metrics::JsonLines> samples_; // nullopt: the run has no eval.samples
  std::optional<RunEvents> events_;
  std::optional<metrics::Tensorboard> tensorboard_;
  std::unique_ptr<metrics::ProgressPrinter> progress_;
};

} // namespace distill::trainer
