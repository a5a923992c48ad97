#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <optional>
#include <string>

#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/step_record.h"

namespace distill::trainer {

// Finds steps whose loss exceeds the median of the last 64 losses by more than `sigmas` deviations. The deviation is
// 1.4826 times the median absolute deviation, which estimates the standard deviation of a normal distribution, but at
// least a hundredth of the median. No step is a spike before 16 losses are known.
class SpikeDetector {
 public:
  explicit SpikeDetector(double sigmas) : sigmas_(sigmas) {} // 0: finds none

  struct Spike {
    double median = 0;
    double deviation = 0;
  };
  // Adds the next loss; nullopt: it is no spike. Losses that are not finite are ignored.
  std::optional<Spike> next(double loss);

 private:
  double sigmas_;
  std::deque<double> losses_; // the last ones, spikes excluded
};

// events.jsonl of a run folder: loss spikes and steps with gradients that are not finite, with their samples, so that
// `distill replay` can repeat them.
class RunEvents {
 public:
  // Removes the events of steps after `last_step`, and reads the earlier losses from metrics.jsonl, so that a resumed
  // run records the same events as an undisturbed one.
  static absl::StatusOr<RunEvents> open(const std::string& run_dir, int64_t last_step, double spike_sigmas);

  // Records the step's event, if it is one, and returns a line for the log; empty: no event.
  absl::StatusOr<std::string> step(const metrics::StepRecord& record);

  // See JsonLines::sync().
  absl::Status sync() const {
    return file_.sync();
  }

 private:
  RunEvents(std::string run_dir, metrics::JsonLines file, double spike_sigmas)
      : run_dir_(std::move(run_dir)), file_(std::move(file)), spikes_(spike_sigmas) {}

  std::string run_dir_;
  metrics::JsonLines file_;
  SpikeDetector spikes_;
};

} // namespace distill::trainer
