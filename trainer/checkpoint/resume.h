#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "trainer/checkpoint/folder.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// Reading a checkpoint back on any number of ranks. All ranks call these together and get the same answer.
namespace distill::checkpoint {

// What this run is, compared with a checkpoint whose training data had last been in the given stage: the data's
// identity is that of the stage, since length and packing may change.
using IdentityAt = std::function<RunIdentity(const DataStage& stage)>;

struct Resumed {
  std::string folder;
  TrainState state;
  RunInfo info; // of the run that saved
  std::string damaged; // what was set aside on the way, and why; one line each
  std::vector<std::string> superseded; // checkpoints beyond this one that were set aside
  std::vector<std::string> data_lines; // for people: how the training data goes on where a new stage of it begins
};

// Continues from the newest complete checkpoint of a run folder. One that turns out to be damaged is set aside with a
// warning that says what is wrong with it, and the one before it is used. NotFound: none is left.
absl::StatusOr<Resumed> resume_newest(
    const std::string& run_dir, const IdentityAt& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

// Continues from this checkpoint and no other. FailedPrecondition: its identity differs, both values are shown.
// DataLoss: it is incomplete or damaged; model and optimizer may have been changed.
absl::StatusOr<Resumed> resume_from(
    const std::string& folder, const IdentityAt& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

} // namespace distill::checkpoint
