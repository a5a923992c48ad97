#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// A run's state in <run folder>/checkpoints/step-N: index.json, one safetensors file of flat shards per rank, and the
// marker COMPLETE, written last. The folder is made under a temporary name, synced and renamed.
namespace distill::checkpoint {

// Where the run stands, besides the tensors.
struct TrainState {
  int64_t step = 0; // optimizer steps done, skipped ones included
  int64_t samples = 0; // training samples consumed; the next one's index
  int64_t tokens = 0; // samples * seq_len
  int64_t skipped_total = 0; // steps whose gradients were not finite
  int64_t skipped_in_row = 0;

  bool operator==(const TrainState&) const = default;
};

// What a checkpoint must share with the run that resumes from it. Free text, compared literally.
struct RunIdentity {
  std::string model; // shape of the student
  std::string data; // the training set, its order and packing
};

// Saves and returns the checkpoint's folder; all ranks call it together, and all get an error where one fails. Keeps
// the newest `keep` complete ones (at least one) and removes the others.
absl::StatusOr<std::string> save(
    const std::string& run_dir, const TrainState& state, const RunIdentity& identity, sharding::ModelShards& model,
    optim::AdamW& optimizer, int64_t keep, const sharding::Mesh& mesh);

// The newest complete checkpoint of a run folder; nullopt: there is none.
absl::StatusOr<std::optional<std::string>> newest_complete(const std::string& run_dir);

// Fills model and optimizer and returns the state. An identity that differs is an error with both texts.
absl::StatusOr<TrainState> load(
    const std::string& folder, const RunIdentity& identity, sharding::ModelShards& model, optim::AdamW& optimizer);

} // namespace distill::checkpoint
