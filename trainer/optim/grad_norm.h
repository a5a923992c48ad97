#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// All fp32 [1] tensors on the model's device, so that no step waits for the host.
struct GradNorm {
  at::Tensor norm; // global L2 norm over all units
  at::Tensor grad_scale; // what gradients are divided by: max(1, norm / max_norm)
  at::Tensor found_inf; // 1 where the norm is not finite, else 0
};

// max_norm 0: no clipping; the norm is still measured and non-finite gradients are still found. `shard_axis`: the ranks
// that hold the other shards, null where there are none; all of them get the same result.
GradNorm measure_grad_norm(
    const sharding::ModelShards& model, double max_norm, sharding::Communicator* shard_axis = nullptr);

} // namespace distill::optim
