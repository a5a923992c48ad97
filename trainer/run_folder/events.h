#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "trainer/metrics/float8_check.h"
#include "trainer/metrics/json_lines.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/metrics/teacher_check.h"

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
// `distill replay` can repeat them; that the teacher is worse than the student (metrics/teacher_check.h); and that the
// student is near a float8 teacher's own error (metrics/float8_check.h).
class RunEvents {
 public:
  // Removes the events that are not kept, and reads the earlier means from metrics.jsonl, so that a resumed run records
  // the same events as an undisturbed one. `float8_error`: mean KL of a float8 teacher, measured before the run; 0:
  // there is none.
  static absl::StatusOr<RunEvents> open(
      const std::string& run_dir, const metrics::KeptSteps& kept, double spike_sigmas, double float8_error = 0);

  // Records the step's events and returns a line for the log for each.
  absl::StatusOr<std::vector<std::string>> step(const metrics::StepMetrics& record);
  // The same for an evaluation after `step` steps.
  absl::StatusOr<std::vector<std::string>> evaluation(int64_t step, const metrics::LossMeans& means);

  // See JsonLines::sync().
  absl::Status sync() const {
    return file_.sync();
  }

 private:
  RunEvents(std::string run_dir, metrics::JsonLines file, double spike_sigmas, double float8_error)
      : run_dir_(std::move(run_dir)), file_(std::move(file)), spikes_(spike_sigmas), float8_(float8_error) {}

  absl::StatusOr<std::string> spoiled_step(const metrics::StepMetrics& record); // empty: it is not

  std::string run_dir_;
  metrics::JsonLines file_;
  SpikeDetector spikes_;
  metrics::TeacherCheck teacher_;
  metrics::Float8Check float8_;
};

} // namespace distill::trainer
