#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "data/dataset.h"
#include "trainer/config/config.h"
#include "trainer/micro_batch.h"
#include "trainer/sharding/mesh.h"
#include "trainer/trainer.h"

// Doing one step of a run again, in a folder of its own, to see what went wrong with it.
namespace distill::trainer {

struct Replay {
  config::Config config; // of the run, with run.dir replaced by <run folder>/replay-<step>; nothing is saved
  StartOptions start; // from the newest complete checkpoint before the step, or from the run's start
};

// NotFound: the run folder is not there. InvalidArgument: the run has no such step.
absl::StatusOr<Replay> plan_replay(const config::Config& config, int64_t step);

// The loss of each sample [first, first + count) by itself, before the step's update; all ranks take part, each with an
// equal share of the samples. Lines for people, on the main rank.
absl::StatusOr<std::vector<std::string>> sample_losses(
    MicroStep& micro, const data::Dataset& data, int64_t first, int64_t count, const sharding::Mesh& mesh);

} // namespace distill::trainer
