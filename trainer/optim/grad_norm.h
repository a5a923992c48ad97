#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// All fp32 [1] tensors on the model's device, so that no step waits for the host.
struct GradNorm {
  at::Tensor norm; // global L2 norm over all units
  at::Tensor grad_scale; // gradients are divided by it (libtorch's name): max(1, norm / max_norm)
  at::Tensor found_inf; // 1 where the norm is not finite, else 0
};

// fp64 [1]: the square of the L2 norm of this rank's gradient shards, exact to fp64 rounding at any size. The squares
// of the ranks of a shard axis add up to the model's.
at::Tensor grad_norm_square(const sharding::ModelShards& model);

// `square`: summed over all shards. max_norm 0: no clipping; gradients that are not finite are still found.
GradNorm grad_norm_of_square(const at::Tensor& square, double max_norm);

} // namespace distill::optim
