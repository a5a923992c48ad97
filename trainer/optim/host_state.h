#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "trainer/sharding/side_stream.h"

namespace distill::optim {

// Optimizer state, flat fp32: of a unit, or of a piece of one.
struct OptimizerState {
  at::Tensor master;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;

  OptimizerState narrow(int64_t begin, int64_t count) const {
    return {master.narrow(0, begin, count), exp_avg.narrow(0, begin, count), exp_avg_sq.narrow(0, begin, count)};
  }
};

// Passes state that lies in host memory through the device, piece after piece: while one is updated, the next one is on
// its way in and the last one on its way out, on streams of their own, overlapped with the compute stream. On the CPU
// the copies are made at once, by the same code.
class HostState {
 public:
  static constexpr int64_t kStages = 3; // pieces on the device at a time

  // Elements of a stage's tensors, for units of up to `largest` elements: a piece is at most that long. Long enough for
  // the copies' bandwidth, and not the size of an embedding. `piece`: the limit.
  static constexpr int64_t kPiece = int64_t{1} << 25;
  static int64_t stage_numel(int64_t largest, int64_t piece = kPiece) {
    return std::min(largest, piece);
  }

  HostState(at::Device device, int64_t stage_numel);
  // Waits for the copies: the host's memory may go next.
  ~HostState();
  HostState(const HostState&) = delete;
  HostState& operator=(const HostState&) = delete;

  // Starts the copy of the next piece to the device; at most kStages pieces wait for send_back().
  void fetch(const OptimizerState& host);
  // The piece fetched longest ago, on the device, for `update`: what it queues runs on the update's stream, after the
  // piece has arrived. Then it goes back to where it came from.
  template <typename Update>
  void update(const OptimizerState& host, Update&& update) {
    Stage& stage = stages_[updated_++ % kStages];
    update_.run([&] {
      stage.arrived.wait();
      update(stage.buffers.narrow(0, host.master.numel()));
      stage.updated.record();
    });
    send_back(stage, host);
  }
  // The update's stream waits for what has been queued on the current one.
  void begin_update();
  // After a step's last piece: what is fetched from now on may read what this step has written.
  void end_update();

  // The host waits until all state is back.
  void wait() const;

 private:
  struct Stage {
    OptimizerState buffers;
    sharding::Fence arrived, updated, left;

    explicit Stage(at::Device device) : arrived(device), updated(device), left(device) {}
  };
  static void copy(const OptimizerState& to, const OptimizerState& from);
  void send_back(Stage& stage, const OptimizerState& host);

  sharding::SideStream in_, update_, out_;
  sharding::Fence decided_; // what the update depends on
  sharding::Fence all_left_; // of the last step
  std::array<Stage, kStages> stages_;
  int64_t fetched_ = 0, updated_ = 0; // pieces, since the start of the run
};

} // namespace distill::optim
