#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trainer/optim/adamw_kernel.h"
#include "trainer/sharding/model_shards.h"
#include "trainer/sharding/side_stream.h"

namespace distill::optim {

// Updates units on the host (models::StatePlace::kCpu): their gradients are copied to the host, its cores compute the
// step in place on the state in host memory, and the new weights are copied to the device. For each parameter that is 4
// bytes of gradient and 2 of weights over PCIe, where state that passes through the device takes 12 each way.
//
// All of it is queued on streams, the host's work too, so that the caller never waits: the copies of gradients overlap
// with the backward pass, the rest with the next step, unit by unit. On the CPU everything is complete on return.
class CpuUpdate {
 public:
  // `model`: has units that the CPU updates. `piece`: elements that are updated at a time; 0: kPiece. Memory for
  // gradients and weights on their way comes from the model's host memory.
  CpuUpdate(sharding::ModelShards& model, int64_t piece);
  // Waits for the host's work.
  ~CpuUpdate();
  CpuUpdate(const CpuUpdate&) = delete;
  CpuUpdate& operator=(const CpuUpdate&) = delete;

  // The unit's gradient of this step is final on the current stream. Starts its copy to the host. The gradient must
  // live until the unit's update has been waited for.
  void take_gradient(int64_t unit);
  // Call when the step's factors are written on the current stream: AdamWFactors, as bytes on the device. Gradients
  // that have not been taken are taken now.
  void begin(const at::Tensor& factors);
  // Describes the update of the elements [begin, begin + count) of a unit's shard, whose state is in host memory, but
  // for the gradient, the copy and the factors.
  using ArgsOf = std::function<AdamWArgs(int64_t begin, int64_t count)>;
  // Queues the unit's update, and the copy of its weights to the device, with which it is complete
  // (ModelShards::unit_updated).
  void queue(int64_t unit, const ArgsOf& args_of);

  // Blocks the host until the state is that of the last update that was queued.
  void wait() const;

  static constexpr int64_t kPiece = int64_t{1} << 24; // 5 ms of work for 16 cores

 private:
  struct Unit {
    at::Tensor gradient; // in host memory; undefined: the unit is not updated here
    bool taken = false; // in this step
    sharding::Fence arrived;

    explicit Unit(at::Device device) : arrived(device) {}
  };
  struct Stage {
    at::Tensor weights; // in host memory, [piece] in the dtype of the compute copies
    sharding::Fence updated, left;

    explicit Stage(at::Device device) : updated(device), left(device) {}
  };
  void update_piece(const AdamWArgs& args, at::Tensor copy, const at::Tensor& master) const;

  sharding::ModelShards& model_;
  int64_t piece_ = 0;
  int threads_ = 1;
  std::vector<Unit> units_;
  std::vector<Stage> stages_; // none: the compute copies are fp32, and are copied from the master weights
  size_t next_stage_ = 0;
  at::Tensor factors_; // AdamWFactors in host memory
  sharding::SideStream down_, work_, up_;
  sharding::Fence decided_, worked_;
};

} // namespace distill::optim
