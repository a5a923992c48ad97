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

// fp64 [1]: the square of the L2 norm of this rank's gradient shards. What the ranks of a shard axis hold adds up.
at::Tensor grad_norm_square(const sharding::ModelShards& model);

// From the square over all shards. max_norm 0: no clipping; gradients that are not finite are found all the same.
GradNorm grad_norm_of_square(const at::Tensor& square, double max_norm);

} // namespace distill::optim
