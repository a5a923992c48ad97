#include "trainer/optim/host_state.h"

#include "trainer/device/memory_tracker.h"

namespace distill::optim {

HostState::HostState(at::Device device, at::ScalarType moments, int64_t stage_numel, int64_t stages)
    : in_(device, sharding::StreamPriority::kAsCompute),
      update_(device),
      out_(device, sharding::StreamPriority::kAsCompute),
      decided_(device),
      all_left_(device) {
  const device::LabelScope label(device::Category::kStaging);
  const auto buffer = [&](at::ScalarType dtype) {
    return at::empty({stage_numel}, at::TensorOptions().dtype(dtype).device(device));
  };
  for (int64_t i = 0; i < stages; ++i) {
    stages_.emplace_back(device).buffers = {buffer(at::kFloat), buffer(moments), buffer(moments)};
  }
}

HostState::~HostState() {
  try {
    wait();
    for (const Stage& stage : stages_) {
      stage.arrived.synchronize();
    }
  } catch (const c10::Error&) { // the device has failed: no copy is running any more
  }
}

void HostState::copy(const OptimizerState& to, const OptimizerState& from) {
  to.master.copy_(from.master, /*non_blocking=*/true);
  to.exp_avg.copy_(from.exp_avg, /*non_blocking=*/true);
  to.exp_avg_sq.copy_(from.exp_avg_sq, /*non_blocking=*/true);
}

void HostState::fetch(const OptimizerState& host) {
  TORCH_CHECK(fetched_ < updated_ + stages(), "optimizer state is fetched into a stage that is not free");
  Stage& stage = stage_of(fetched_++);
  in_.run([&] {
    all_left_.wait(); // the last step's results are in host memory
    stage.left.wait(); // the stage's previous piece has left it
    copy(stage.buffers.narrow(0, host.master.numel()), host);
    stage.arrived.record();
  });
}

void HostState::send_back(Stage& stage, const OptimizerState& host) {
  out_.run([&] {
    stage.updated.wait();
    copy(host, stage.buffers.narrow(0, host.master.numel()));
    stage.left.record();
  });
}

void HostState::begin_update() {
  decided_.record();
  update_.run([&] { decided_.wait(); });
}

void HostState::end_update() {
  out_.run([&] { all_left_.record(); });
}

void HostState::wait() const {
  all_left_.synchronize();
}

} // namespace distill::optim
