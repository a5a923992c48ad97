#include "trainer/device/device_hooks.h"

// A build without CUDA has no device but the CPU, for which there is nothing to do.
namespace distill::device {

int64_t cuda_device_count() {
  return 0;
}
GpuProperties gpu_properties(at::Device device) {
  TORCH_CHECK(false, "this build has no CUDA: ", device, " is not there");
}
AllocatorSettings use_allocator(at::Device, AllocatorSettings settings) {
  return settings;
}
void empty_allocator_cache(at::Device) {}
void synchronize(at::Device) {}
ForbidSynchronization::ForbidSynchronization(bool active) : active_(active) {}
ForbidSynchronization::~ForbidSynchronization() = default;
AllowSynchronization::AllowSynchronization() : previous_(0) {}
AllowSynchronization::~AllowSynchronization() = default;

void hook_device_allocator(at::Device device) {
  TORCH_CHECK(device.is_cpu(), "this build has no CUDA: ", device, " cannot be tracked");
}
const char* pin_host_memory(void*, size_t) {
  return nullptr;
}
void unpin_host_memory(void*) {}
void run_on_host(at::Device, std::function<void()> work) {
  work();
}
void copy_by_kernel(at::Tensor to, const at::Tensor& from) {
  to.copy_(from);
}
std::optional<int> numa_node(at::Device) {
  return std::nullopt;
}
AllocatorBytes allocator_bytes(at::Device) {
  return {};
}
void reset_allocator_peaks(at::Device) {}
int64_t used_device_bytes(at::Device) {
  return 0;
}
int64_t bytes_outside_allocator(at::Device) {
  return 0;
}
int64_t bytes_of_other_processes(at::Device) {
  return 0;
}
void limit_device_memory(at::Device, int64_t) {}
void record_allocator_history(bool) {}
std::string allocator_snapshot_pickle() {
  return {};
}

} // namespace distill::device
