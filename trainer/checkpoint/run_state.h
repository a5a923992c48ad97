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

// The tensors of a rank's state, which are saved to a checkpoint and read back into place.
namespace distill::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Master weights and moments of every unit, the optimizer's step counter and the states of the random generators, in
// the order of the file.
std::vector<NamedTensor> state_tensors(sharding::ModelShards& model, optim::AdamW& optimizer);

int64_t state_bytes(const std::vector<NamedTensor>& tensors);

// Reads this rank's ranges from a checkpoint that any number of ranks may have written. With replicas, only the ranks
// of the first replica read; share_with_replicas() then broadcasts their state to the others.
absl::Status read_state(
    StateReader& reader, const Index& index, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh);
void share_with_replicas(sharding::ModelShards& model, optim::AdamW& optimizer, const sharding::Mesh& mesh);

} // namespace distill::checkpoint
