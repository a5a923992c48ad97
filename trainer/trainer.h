#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainer/config/config.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/step_record.h"
#include "trainer/plan/plan.h"
#include "trainer/run_folder/run_folder.h"

namespace distill::trainer {

struct StartOptions {
  StartMode mode = StartMode::kFresh;
  // A checkpoint's folder to go on from, of this run or of another one. Empty: with kResume the newest complete
  // checkpoint of the run folder, else from the start.
  std::string resume_from;
  int64_t last_step = 0; // end the run after this step, as if it were its last; 0: at its end
  bool show_samples = false; // say what each sample of the last step loses
};

// Device memory that is taken beside the allocator: the driver, libraries, communicators. 0 on the CPU.
struct OutsideAllocator {
  int64_t start = 0; // before the ranks are joined
  int64_t joined = 0; // with the communicators
  int64_t end = 0; // after the last step
};

struct RunResult {
  bool stopped_by_signal = false; // the state was saved
  int64_t steps = 0; // done since the start of the run, earlier parts included
  std::shared_ptr<const plan::Plan> plan; // what had been predicted
  OutsideAllocator outside; // bytes
};

// Runs the whole job: builds, trains, closes. Statuses carry configuration and file errors (kInvalidArgument,
// kNotFound, kFailedPrecondition: nothing was started) and runtime failures (every other code).
absl::StatusOr<RunResult> train(
    const config::Config& config, const StartOptions& start, const launch::StopSignal& stop);
// The same, handling signals while it runs.
absl::StatusOr<RunResult> train(const config::Config& config, const StartOptions& start);

// Checks all that can be checked without training: model folders and their tensors, tokenizers, data, whether the
// memory plan fits. Prints a summary and the plan on standard output.
absl::Status dry_run(const config::Config& config);

struct EvalReport {
  metrics::LossMeans means;
  int64_t samples = 0; // sequences
  double seconds = 0;

  std::string text() const; // a table for people
  std::string json() const; // one object with the names of metrics.jsonl
};

// Evaluates student.path against the teacher on data.eval, over eval.batches micro-batches (0: the whole set).
absl::StatusOr<EvalReport> evaluate(const config::Config& config);

} // namespace distill::trainer
