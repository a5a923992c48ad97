#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/config/config.h"
#include "trainer/optim/grad_norm.h"
#include "trainer/optim/host_state.h"
#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// AdamW (Loshchilov and Hutter, 2019) on the flat fp32 master shards of every unit. Decay applies to matrices only, not
// to norms and biases. A step whose gradients are not finite changes nothing, its step counter included. Where the
// model's master weights lie in host memory, the moments lie beside them and the state passes through the device.
class AdamW {
 public:
  AdamW(sharding::ModelShards& model, const config::OptimizerSection& options);

  // Updates the master weights and the compute copies from the units' gradients.
  void step(double lr, const GradNorm& grad_norm);

  // State of one unit, flat fp32 like its master weights and where they are.
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
  // The same for state in host memory.
  void step_through_device(double lr, const GradNorm& grad_norm);

  OptimizerState state(int64_t unit) const {
    return {model_.unit(unit).master, moments_[unit].exp_avg, moments_[unit].exp_avg_sq};
  }
  // Queues the update of one unit whose state is on the device.
  void update_on_gpu(int64_t unit, const OptimizerState& state, double lr, const GradNorm& grad_norm);

  // Tensors of all units that share one weight decay.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  };
  void add_slice(Group& group, int64_t unit, const OptimizerState& state, int64_t begin, int64_t end);
  void update_with_aten(const Group& group, double lr, const GradNorm& grad_norm);

  sharding::ModelShards& model_;
  config::OptimizerSection options_;
  std::vector<Moments> moments_;
  std::vector<int64_t> first_matrix_; // of each unit, elements from its start: decay applies from there on
  at::Tensor step_count_;
  std::unique_ptr<HostState> host_state_; // null: the state lies on the device
};

} // namespace distill::optim
