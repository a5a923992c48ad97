#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/sharding/side_stream.h"

namespace distill::optim {

// Optimizer state, flat: of a unit, or of a piece of one.
struct OptimizerState {
  at::Tensor master; // fp32
  at::Tensor exp_avg; // the moments: fp32 or bf16
  at::Tensor exp_avg_sq;

  OptimizerState narrow(int64_t begin, int64_t count) const {
    return {master.narrow(0, begin, count), exp_avg.narrow(0, begin, count), exp_avg_sq.narrow(0, begin, count)};
  }
};

// Passes state in host memory through the device piece by piece: while one piece is updated, the next ones are copied
// in and the previous one out, each on a stream of its own, overlapped with the compute stream. There are as many
// pieces on the device at a time as there are stages. On the CPU the copies are made at once, by the same code.
class HostState {
 public:
  // `stage_numel`: the elements of the largest piece. `moments`: their dtype.
  HostState(at::Device device, at::ScalarType moments, int64_t stage_numel, int64_t stages);
  // Waits for the copies: the host memory may be freed next.
  ~HostState();
  HostState(const HostState&) = delete;
  HostState& operator=(const HostState&) = delete;

  int64_t stages() const {
    return static_cast<int64_t>(stages_.size());
  }
  // Starts the copy of the next piece to the device; at most stages() pieces may be fetched and not updated.
  void fetch(const OptimizerState& host);
  // Calls `update` with the oldest fetched piece, on the device; work that it queues runs on the update's stream, after
  // the piece has arrived. The piece is then copied back to `host`.
  template <typename Update>
  void update(const OptimizerState& host, Update&& update) {
    Stage& stage = stage_of(updated_++);
    update_.run([&] {
      stage.arrived.wait();
      update(stage.buffers.narrow(0, host.master.numel()));
      stage.updated.record();
    });
    send_back(stage, host);
  }
  // Makes the update's stream wait for the work that has been queued on the current stream.
  void begin_update();
  // Call after a step's last piece: later fetches wait until this step's state is back in host memory.
  void end_update();

  // Blocks the host until all state is back in host memory.
  void wait() const;

 private:
  struct Stage {
    OptimizerState buffers;
    sharding::Fence arrived, updated, left;

    explicit Stage(at::Device device) : arrived(device), updated(device), left(device) {}
  };
  Stage& stage_of(int64_t piece) {
    return stages_[static_cast<size_t>(piece % stages())];
  }
  static void copy(const OptimizerState& to, const OptimizerState& from);
  void send_back(Stage& stage, const OptimizerState& host);

  sharding::SideStream in_, update_, out_;
  sharding::Fence decided_; // recorded when the update's inputs are ready
  sharding::Fence all_left_; // recorded when the last step's pieces have left the device
  std::vector<Stage> stages_;
  int64_t fetched_ = 0, updated_ = 0; // number of pieces since the start of the run
};

} // namespace distill::optim
