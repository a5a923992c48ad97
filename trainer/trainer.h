#pragma once

#include <absl/status/statusor.h>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/run_result.h"
#include "trainer/start_options.h"

namespace distill::trainer {

// Runs the whole job on this rank: builds, trains, closes. `stop` outlives the run. Statuses carry configuration and
// file errors (kInvalidArgument, kNotFound, kFailedPrecondition: nothing was started) and runtime failures (every other
// code).
absl::StatusOr<RunResult> train(
    const config::Config& config, const launch::RankInfo& ranks, const StartOptions& start,
    const launch::StopSignal& stop);

} // namespace distill::trainer
