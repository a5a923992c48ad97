#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/trainer.h"

// Runs one step of a run again, in a folder of its own, to find out what went wrong in it. The run folder is locked
// during the replay.
namespace distill::trainer {

struct Replay {
  config::Config config; // of the run, with run.dir replaced by <run folder>/replay-<step>; nothing is saved
  StartOptions start; // from the newest complete checkpoint before the step, or from the run's start
};

// Plans the replay of a step. NotFound: the run folder is not there. InvalidArgument: the run has no such step.
absl::StatusOr<Replay> plan_replay(const config::Config& config, int64_t step);

} // namespace distill::trainer
