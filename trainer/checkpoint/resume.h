#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

#include "trainer/checkpoint/folder.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// Resuming from a checkpoint, on any number of ranks. All ranks must call these functions together; all get the same
// result.
namespace distill::checkpoint {

// A run that resumes, as far as it must be the one that saved.
struct ResumingRun {
  RunIdentity identity;
  // Returns the identity of its training data in the lengths and packing of a stage, the last one of the checkpoint, so
  // that these may differ.
  std::function<DataIdentity(const DataStage& stage)> data_in;
  // Whether the run may go on from this state with other data, which begin a stage of their own; null: never.
  std::function<bool(const TrainState&)> other_data_allowed = {};
  std::map<std::string, std::string> model_files = {}; // as in RunInfo
};

struct Resumed {
  std::string folder;
  TrainState state;
  RunInfo info; // of the run that saved
  std::string damaged; // newer checkpoints that were found damaged and renamed, and why; a line each
  std::vector<std::string> superseded; // later checkpoints that were renamed
  std::vector<std::string> data_lines; // log lines about the data at the start of a stage; empty: the stage continues
};

// Continues from the newest complete checkpoint of a run folder. A checkpoint that turns out to be damaged is renamed,
// a warning describes the damage, and the checkpoint before it is used. NotFound: there is no undamaged checkpoint.
absl::StatusOr<Resumed> resume_newest(
    const std::string& run_dir, const ResumingRun& run, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

// Continues from this checkpoint only. FailedPrecondition: it belongs to another run; the message shows both
// identities. DataLoss: it is incomplete or damaged; model and optimizer may have been changed already.
absl::StatusOr<Resumed> resume_from(
    const std::string& folder, const ResumingRun& run, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);

} // namespace distill::checkpoint
