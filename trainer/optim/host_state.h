#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "trainer/sharding/side_stream.h"

namespace distill::optim {

// One unit's optimizer state, flat fp32.
struct OptimizerState {
  at::Tensor master;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

// Passes state that lies in host memory through the device, unit after unit: while one is updated, the next one is on
// its way in and the last one on its way out, on two streams of their own. The last copies run beside what follows the
// update. On the CPU the copies are made at once, by the same code.
class HostState {
 public:
  // `largest`: elements of the largest unit.
  HostState(at::Device device, int64_t largest);

  // Starts the copies of the `turn`-th unit of a step, counted from 0, in order, at most one turn ahead of take().
  void fetch(int64_t turn, const OptimizerState& host);
  // The unit on the device; the compute stream waits for it.
  OptimizerState take(int64_t turn, int64_t numel) const;
  // After its update was queued.
  void send_back(int64_t turn, const OptimizerState& host);

 private:
  struct Stage {
    OptimizerState buffers;
    sharding::Fence arrived, updated, left;

    explicit Stage(at::Device device) : arrived(device), updated(device), left(device) {}
  };
  static void copy(const OptimizerState& to, const OptimizerState& from);

  sharding::SideStream in_, out_;
  std::array<Stage, 2> stages_;
};

} // namespace distill::optim
