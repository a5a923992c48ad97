#include "trainer/metrics/trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "trainer/device/device_hooks.h"

namespace distill::metrics {
namespace {

using torch::profiler::impl::ActivityType;

void wait_for_device(bool cuda) {
  if (cuda) {
    device::synchronize(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
  }
}

} // namespace

TraceRecorder::TraceRecorder(int64_t first, int64_t count, bool cuda, std::string path)
    : first_(first), last_(first + count - 1), cuda_(cuda), path_(std::move(path)) {}

TraceRecorder::~TraceRecorder() {
  if (recording_) {
    torch::autograd::profiler::disableProfiler();
  }
}

void TraceRecorder::before_step(int64_t step) {
  if (step != first_ || last_ < first_) {
    return;
  }
  wait_for_device(cuda_); // the trace must not begin with work of the previous step
  std::set<ActivityType> activities{ActivityType::CPU};
  if (cuda_) {
    activities.insert(ActivityType::CUDA);
  }
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(
      config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  recording_ = true;
}

bool TraceRecorder::after_step(int64_t step) {
  if (!recording_ || step < last_) {
    return false;
  }
  wait_for_device(cuda_); // the trace must contain the whole step
  torch::autograd::profiler::disableProfiler()->save(path_);
  recording_ = false;
  return true;
}

} // namespace distill::metrics
