#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <vector>

#include "data/prefetch.h"
#include "trainer/checkpointer.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/sharding/mesh.h"

namespace distill::trainer {

// A rank's part of one optimizer step.
struct GlobalBatch {
  std::vector<data::Batch> micro_batches;
  int64_t valid_tokens = 0; // over all ranks
};

// Where the ranks meet before each step: one sum over all of them says whether every rank has its data, whether any was
// asked to stop, and how the checkpoint that is being written is doing. A rank that waits for its data goes on meeting
// the others, so that a signal to any rank is seen by all of them at the same step.
class StepGate {
 public:
  // All of them outlive this. `micro_batches`: of one step, on each rank.
  StepGate(
      const sharding::Mesh& mesh, const launch::StopSignal& stop, RunCheckpoints& checkpoints,
      data::Prefetcher& batches, int64_t micro_batches)
      : mesh_(mesh), stop_(stop), checkpoints_(checkpoints), batches_(batches), micro_batches_(micro_batches) {}

  // Nothing: a rank was asked to stop. An error of one rank is an error on all.
  absl::StatusOr<std::optional<GlobalBatch>> next();

 private:
  absl::Status collect();

  const sharding::Mesh& mesh_;
  const launch::StopSignal& stop_;
  RunCheckpoints& checkpoints_;
  data::Prefetcher& batches_;
  int64_t micro_batches_;
  std::vector<data::Batch> collected_;
};

} // namespace distill::trainer
