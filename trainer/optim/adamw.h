#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/config/config.h"
#include "trainer/optim/grad_norm.h"
#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// AdamW (Loshchilov and Hutter, 2019) on the flat fp32 master shards of every unit. Decay applies to matrices only, not
// to norms and biases. A step whose gradients are not finite changes nothing, its step counter included.
class AdamW {
 public:
  AdamW(sharding::ModelShards& model, const config::OptimizerSection& options);

  // Updates the master weights and the compute copies from the units' gradients.
  void step(double lr, const GradNorm& grad_norm);

  // State of one unit, flat fp32 like its master weights.
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };
  Moments& moments(int64_t unit) {
    return moments_[unit];
  }
  // fp32 [1]: how many steps were taken (not skipped).
  at::Tensor& step_count() {
    return step_count_;
  }

 private:
  // One fused pass over each unit's shard, the bf16 copies included.
  void step_on_gpu(double lr, const GradNorm& grad_norm);
  void step_with_aten(double lr, const GradNorm& grad_norm);

  // Tensors of all units that share one weight decay.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  };
  void add_slice(Group& group, int64_t unit, int64_t begin, int64_t end);

  sharding::ModelShards& model_;
  config::OptimizerSection options_;
  std::vector<Moments> moments_;
  std::vector<int64_t> first_matrix_; // of each unit, elements from its start: decay applies from there on
  at::Tensor step_count_;
};

} // namespace distill::optim
