#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/config/config.h"
#include "trainer/optim/adamw_kernel.h"
#include "trainer/optim/cpu_update.h"
#include "trainer/optim/grad_norm.h"
#include "trainer/optim/host_state.h"
#include "trainer/sharding/model_shards.h"

namespace distill::optim {

// AdamW (Loshchilov and Hutter, 2019) on the flat fp32 master shards of every unit, with moments in fp32 or bf16. Decay
// applies to matrices only, not to norms and biases. A step whose gradients are not finite changes nothing, its step
// counter included.
//
// The moments of a unit are where its master weights are. Units whose state is on the device are updated on the compute
// stream. The state of the others is in host memory: it passes through the device piece by piece (HostState), or the
// host's cores update it (CpuUpdate), overlapped with the compute stream. Such an update is queued where its unit is
// used next, and the compute stream waits for it there (ModelShards::update_later). Meanwhile the next step's teacher
// runs. Wherever a unit is updated, the results are the same, bit for bit.
class AdamW {
 public:
  // `piece`: the elements of state in host memory that pass through the device together; 0:
  // sharding::StateMemory::piece_numel().
  AdamW(sharding::ModelShards& model, const config::OptimizerSection& options, int64_t piece = 0);
  // Queues what is left of the last step, and waits for it.
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

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
  // Adds the moments of all units.
  void add_state(std::vector<device::MemoryPark::Item>& state) {
    wait();
    for (const Moments& moments : moments_) {
      state.push_back({moments.exp_avg, device::Category::kMoments});
      state.push_back({moments.exp_avg_sq, device::Category::kMoments});
    }
  }
  // fp32 [1]: how many steps were taken (not skipped).
  at::Tensor& step_count() {
    return step_count_;
  }

 private:
  // Where the units' moments are, and pieces of those that pass through the device.
  void allocate_state(int64_t piece);
  void make_factors(double lr, const GradNorm& grad_norm);
  // The step of units whose state is on the device: one fused pass over each unit's shard, which writes the bf16 copy
  // of a GPU too.
  void step_on_device();
  // Queues the updates of the units in host memory, in forward order, up to this one.
  void queue_until(int64_t unit);
  void queue_through_device(int64_t unit);
  // Starts copying up to `most` of the step's first pieces to the device, one for each stage at most, after the last
  // step's pieces have left it.
  void fetch_ahead(int64_t most);

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
  // The update of a piece, but for its gradient, the copy and the factors. n is not positive where it is only padding.
  AdamWArgs args_of(const Piece& piece, const OptimizerState& state) const;
  // Queues the update of a piece whose state is on the device.
  void update(const Piece& piece, const OptimizerState& state);

  sharding::ModelShards& model_;
  config::OptimizerSection options_;
  std::vector<Moments> moments_;
  std::vector<int64_t> first_matrix_; // for each unit, the element from which weight decay applies
  at::Tensor step_count_;
  at::Tensor factors_; // AdamWFactors of the last step, as bytes
  int64_t next_unit_ = 0; // of the last step: the first unit whose update is not queued
  std::unique_ptr<HostState> host_state_; // null: no state passes through the device
  std::vector<Piece> pieces_; // of state that passes through the device, in forward order
  size_t fetched_ = 0, updated_ = 0; // number of the step's pieces that have been fetched, and whose update is queued
  std::unique_ptr<CpuUpdate> cpu_update_; // null: the host updates nothing
};

} // namespace distill::optim
