#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/sharding/model_shards.h"

namespace distill::trainer {

// A sample of a model's gradient: every 61st element of each unit's shard, which reaches every row and column of its
// matrices. It is taken when the gradients have been reduced, and compared with the gradients of a later pass.
class GradientProbe {
 public:
  enum Product : int64_t {
    kDot, // of both gradients
    kEarlierSquare,
    kLaterSquare,
    kProducts
  };

  explicit GradientProbe(sharding::ModelShards& model);

  // Inner products of the probe's elements and the same elements of the model's gradients now: fp64 [kProducts], to be
  // summed over ranks.
  at::Tensor products(sharding::ModelShards& model) const;

 private:
  std::vector<at::Tensor> samples_; // one for each unit
};

// The cosine of the angle between two gradients, from products summed over ranks. NaN if one of them is zero.
double cosine(double dot, double earlier_square, double later_square);

} // namespace distill::trainer
