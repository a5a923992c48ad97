#include "trainer/optim/host_state.h"

#include "trainer/device/memory_tracker.h"

namespace distill::optim {
namespace {

OptimizerState narrow(const OptimizerState& state, int64_t numel) {
  return {state.master.narrow(0, 0, numel), state.exp_avg.narrow(0, 0, numel), state.exp_avg_sq.narrow(0, 0, numel)};
}

} // namespace

HostState::HostState(at::Device device, int64_t largest)
    : in_(device), out_(device), stages_{Stage(device), Stage(device)} {
  const device::LabelScope label(device::Category::kStaging);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  for (Stage& stage : stages_) {
    stage.buffers = {at::empty({largest}, options), at::empty({largest}, options), at::empty({largest}, options)};
  }
}

void HostState::copy(const OptimizerState& to, const OptimizerState& from) {
  to.master.copy_(from.master, /*non_blocking=*/true);
  to.exp_avg.copy_(from.exp_avg, /*non_blocking=*/true);
  to.exp_avg_sq.copy_(from.exp_avg_sq, /*non_blocking=*/true);
}

void HostState::fetch(int64_t turn, const OptimizerState& host) {
  Stage& stage = stages_[turn % 2];
  in_.run([&] {
    // The stage's last unit has left it. With both stages' newest marks waited for, a step's first two fetches have
    // also seen all of the step before go out.
    stage.left.wait();
    copy(narrow(stage.buffers, host.master.numel()), host);
    stage.arrived.record();
  });
}

OptimizerState HostState::take(int64_t turn, int64_t numel) const {
  const Stage& stage = stages_[turn % 2];
  stage.arrived.wait();
  return narrow(stage.buffers, numel);
}

void HostState::send_back(int64_t turn, const OptimizerState& host) {
  Stage& stage = stages_[turn % 2];
  stage.updated.record();
  out_.run([&] {
    stage.updated.wait();
    copy(host, narrow(stage.buffers, host.master.numel()));
    stage.left.record();
  });
}

} // namespace distill::optim
