#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/config/config.h"
#include "trainer/optim/grad_norm.h"
#include "trainer/optim/host_state.h"
#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// AdamW (Loshchilov and Hutter, 2019) on the flat fp32 master shards of every unit, with moments in fp32 or bf16. Decay
// applies to matrices only, not to norms and biases. A step whose gradients are not finite changes nothing, its step
// counter included.
//
// The moments of a unit are where its master weights are. Units whose state is on the device are updated on the compute
// stream. The state of the others is in host memory and passes through the device piece by piece, overlapped with the
// compute stream: step() returns once the pieces are queued, and each of these units waits for its own update where it
// is used next (ModelShards::unit_updated). Meanwhile the next step's teacher runs.
class AdamW {
 public:
  // `piece`: the elements of state in host memory that pass through the device together; 0:
  // sharding::StateMemory::piece_numel().
  AdamW(sharding::ModelShards& model, const config::OptimizerSection& options, int64_t piece = 0);

  // Starts copying the next step's first pieces to the device, one for each stage, after the last step's pieces have
  // left it. Does nothing if all state is on the device.
  void fetch_ahead();
  // Updates the master weights and the compute copies from the units' gradients.
  void step(double lr, const GradNorm& grad_norm);
  // The host waits until the master weights and moments are those of the last step. Does nothing if they are all on the
  // device.
  void wait();

  // Moments of one unit: flat, stored where its master weights are.
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
  };
  Moments& moments(int64_t unit) {
    wait();
    return moments_[unit];
  }
  // fp32 [1]: how many steps were taken (not skipped).
  at::Tensor& step_count() {
    return step_count_;
  }

 private:
  // The step of units whose state is on the device: on a GPU one fused pass over each unit's shard, which writes the
  // bf16 copy too.
  void step_on_device(double lr, const GradNorm& grad_norm);
  // The step of the units whose state is in host memory.
  void step_through_device(double lr);

  // Elements of a unit's shard that are updated together.
  struct Piece {
    int64_t unit = 0;
    int64_t begin = 0;
    int64_t count = 0;
  };
  Piece whole(int64_t unit) const {
    return {unit, 0, model_.unit(unit).shard.numel};
  }
  OptimizerState state(const Piece& piece) const {
    return OptimizerState{model_.unit(piece.unit).master, moments_[piece.unit].exp_avg, moments_[piece.unit].exp_avg_sq}
        .narrow(piece.begin, piece.count);
  }
  // Whether the units are updated by the kernel of adamw_kernel.h, or by ATen's.
  bool uses_kernel() const;
  // Queue the update of a piece whose state is on the device.
  void update_with_kernel(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm);
  void update_staged(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm);

  // Tensors of all units that share one weight decay.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  };
  // Adds the part of the unit's elements [begin, end) that is in the piece.
  void add_slice(Group& group, const Piece& piece, const OptimizerState& state, int64_t begin, int64_t end);
  void update_with_aten(const Group& group, double lr, const GradNorm& grad_norm);

  sharding::ModelShards& model_;
  config::OptimizerSection options_;
  std::vector<Moments> moments_;
  std::vector<int64_t> first_matrix_; // for each unit, the element from which weight decay applies
  at::Tensor step_count_;
  std::unique_ptr<HostState> host_state_; // null: all state is on the device
  std::vector<Piece> pieces_; // of state in host memory, in forward order
  size_t fetched_ = 0; // number of the next step's pieces that have been fetched
  GradNorm decision_; // of the last step, kept alive while its pieces are updated
};

} // namespace distill::optim
