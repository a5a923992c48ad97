#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/checkpoint/folder.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// Reading a checkpoint back on any number of ranks. All ranks call these together and get the same answer.
namespace distill::checkpoint {

struct Resumed {
  std::string folder;
  TrainState state;
  RunInfo info; // of the run that saved
  std::string damaged; // what was set aside on the way, and why; one line each
};

// Continues from the newest complete checkpoint of a run folder. One that turns out to be damaged is set aside with a
// warning that says what is wrong with it, and the one before it is used. NotFound: none is left.
absl::StatusOr<Resumed> resume_newest(
    const std::string& run_dir, const RunIdentity& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

// Continues from this checkpoint and no other. FailedPrecondition: its identity differs, both values are shown.
// DataLoss: it is incomplete or damaged; model and optimizer may have been changed.
absl::StatusOr<Resumed> resume_from(
    const std::string& folder, const RunIdentity& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

} // namespace distill::checkpoint
