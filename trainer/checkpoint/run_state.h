#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/state_reader.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// The tensors that make up a rank's state: what is saved, and where it is read back to.
namespace distill::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Master weights and moments of every unit, the optimizer's step counter, the states of the random generators; in the
// order of the file.
std::vector<NamedTensor> state_tensors(sharding::ModelShards& model, optim::AdamW& optimizer);

int64_t state_bytes(const std::vector<NamedTensor>& tensors);

// Reads this rank's ranges from a checkpoint, whatever the number of ranks that wrote it. With replicas, those of the
// first one read; share_with_replicas() then gives the others what they read.
absl::Status read_state(
    StateReader& reader, const Index& index, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);
void share_with_replicas(sharding::ModelShards& model, optim::AdamW& optimizer, const sharding::Mesh& mesh);

} // namespace distill::checkpoint
