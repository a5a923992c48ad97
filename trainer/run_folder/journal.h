#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/progress_printer.h"
#include "trainer/metrics/step_record.h"
#include "trainer/run_folder/events.h"

namespace distill::trainer {

// The output of a run: progress on standard output; log.txt, metrics.jsonl, events.jsonl and config.yaml in the run
// folder. Ranks other than 0 write nothing. Standard output that cannot be written any more is reported once and ends
// nothing.
class RunJournal {
 public:
  // Removes the lines of metrics.jsonl that `kept_steps` does not include, so that a resumed run records each step
  // once.
  static absl::StatusOr<RunJournal> open(
      const config::Config& config, bool is_main, const metrics::KeptSteps& kept_steps);

  void info(const std::string& line); // writes to the log
  void warning(const std::string& line);
  absl::Status step(const metrics::StepRecord& record);
  absl::Status evaluation(int64_t step, const metrics::LossMeans& means);
  void message(const std::string& line); // prints on standard output and writes to log.txt
  // When this returns ok, metrics.jsonl and events.jsonl are on the disk. May run on another thread than the other
  // functions.
  absl::Status sync() const {
    const absl::Status status = metrics_ ? metrics_->sync() : absl::OkStatus();
    return status.ok() && events_ ? events_->sync() : status;
  }

 private:
  void check_progress(); // after each print

  bool is_main_ = true;
  bool progress_lost_ = false;
  std::optional<metrics::JsonLines> metrics_;
  std::optional<RunEvents> events_;
  std::unique_ptr<metrics::ProgressPrinter> progress_;
};

} // namespace distill::trainer
