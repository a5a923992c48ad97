#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <optional>
#include <string>

#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/step_record.h"

namespace distill::trainer {

// Finds a step whose loss stands out from those before it: above the median of the last 64 by more than `sigmas` times
// their deviation, which is 1.4826 times the median distance from it (a normal distribution's standard deviation), or a
// hundredth of the median where that is more. Says nothing before it has seen 16.
class SpikeDetector {
 public:
  explicit SpikeDetector(double sigmas) : sigmas_(sigmas) {} // 0: never

  struct Spike {
    double median = 0;
    double deviation = 0;
  };
  // Takes the next loss. One that is not finite is left to others.
  std::optional<Spike> next(double loss);

 private:
  double sigmas_;
  std::deque<double> losses_; // a spike itself is not among them
};

// events.jsonl of a run folder: steps that went wrong, with the samples they were made of, so that `distill replay` can
// do them again.
class RunEvents {
 public:
  // Events after steps beyond `last_step` are dropped, and the detector learns the losses of the steps before from
  // metrics.jsonl: a resumed run records what an undisturbed one would.
  static absl::StatusOr<RunEvents> open(const std::string& run_dir, int64_t last_step, double spike_sigmas);

  // What is to be said about the step; empty: nothing.
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
