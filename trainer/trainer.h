#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/plan/plan.h"
#include "trainer/run_folder/run_folder.h"
#include "trainer/setup/run_context.h"

namespace distill::trainer {

struct StartOptions {
  StartMode mode = StartMode::kFresh;
  // A checkpoint's folder to go on from, of this run or of another one. Empty: with kResume the newest complete
  // checkpoint of the run folder, else from the start.
  std::string resume_from;
  int64_t last_step = 0; // end the run after this step, as if it were its last; 0: at its end
  bool show_samples = false; // say what each sample of the last step loses
  std::string parent_run; // a replay: the run folder that run.dir lies in, which belongs to this job as well
};

struct RunResult {
  bool stopped_by_signal = false; // the state was saved
  int64_t steps = 0; // done since the start of the run, earlier parts included
  std::shared_ptr<const plan::Plan> plan; // what had been predicted
  OutsideAllocator outside; // bytes
  std::shared_ptr<const RunFolder>
      folder; // belongs to this job until the last copy is gone; null on ranks other than 0
};

// Runs the whole job on this rank: builds, trains, closes. `stop` outlives the run. Statuses carry configuration and
// file errors (kInvalidArgument, kNotFound, kFailedPrecondition: nothing was started) and runtime failures (every other
// code).
absl::StatusOr<RunResult> train(
    const config::Config& config, const launch::RankInfo& ranks, const StartOptions& start,
    const launch::StopSignal& stop);

} // namespace distill::trainer
