#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/optim/grad_norm.h"
#include "trainer/optim/host_state.h"
#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// AdamW (Loshchilov and Hutter, 2019) on the flat fp32 master shards of every unit. Decay applies to matrices only, not
// to norms and biases. A step whose gradients are not finite changes nothing, its step counter included.
//
// With optimizer.overlap_update the update runs on a stream of its own beside the compute stream, unit after unit in
// the order of the forward pass, on a part of the GPU: step() returns once it is queued, and each unit waits for its
// own update where it is used next (ModelShards::unit_updated). The next step's teacher runs meanwhile. On the CPU,
// where the update is done on return, gradients live as long.
//
// Where the model's master weights lie in host memory, the moments lie beside them, and the state passes through the
// device piece after piece.
class AdamW {
 public:
  // `piece`: elements of state in host memory that pass through the device together.
  AdamW(sharding::ModelShards& model, const config::OptimizerSection& options, int64_t piece = HostState::kPiece);
  // The compute stream waits for the last update: memory may go next.
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // State in host memory: the first pieces of the next step start their way to the device, as soon as the last step has
  // left it.
  void fetch_ahead();
  // Updates the master weights and the compute copies from the units' gradients.
  void step(double lr, const GradNorm& grad_norm);
  // Master weights and moments are those of the last step: for what is queued on the compute stream from now on, and
  // where they lie in host memory, for the host, which waits.
  void wait();

  // State of one unit, flat fp32 like its master weights and where they are.
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
  // Queues the update of every unit on the current stream.
  void step_on_device(double lr, const GradNorm& grad_norm);
  void step_through_device(double lr, const GradNorm& grad_norm);

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
  // Queue the update of a piece whose state is on the device, its compute copy included.
  void update(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm);
  void update_on_gpu(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm);

  // Tensors of all units that share one weight decay.
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  };
  // Elements [begin, end) of the piece's whole unit, as far as they lie in the piece.
  void add_slice(Group& group, const Piece& piece, const OptimizerState& state, int64_t begin, int64_t end);
  void update_with_aten(const Group& group, double lr, const GradNorm& grad_norm);

  sharding::ModelShards& model_;
  config::OptimizerSection options_;
  std::vector<Moments> moments_;
  std::vector<int64_t> first_matrix_; // of each unit, elements from its start: decay applies from there on
  at::Tensor step_count_;
  // State on the device that is updated beside the compute stream.
  struct Beside {
    sharding::SideStream stream;
    sharding::Fence decided; // what the update depends on

    explicit Beside(at::Device device) : stream(device, sharding::SideStream::Priority::kLow), decided(device) {}
  };
  std::optional<Beside> beside_;
  std::unique_ptr<HostState> host_state_; // null: the state lies on the device
  std::vector<Piece> pieces_; // of state in host memory, in the order of the forward pass
  size_t fetched_ = 0; // of the next step's pieces
  GradNorm decision_; // of the last step, read by its update's stream
};

} // namespace distill::optim
