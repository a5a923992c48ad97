#pragma once

#include <ATen/core/Tensor.h>

#include <string>

// What the metrics need to know of the device. device_cuda.cpp or device_no_cuda.cpp.
namespace distill::metrics {

int64_t cuda_device_count();

struct DeviceInfo {
  std::string name;
  double peak_bf16_flops = 0; // dense, from the vendor's data sheet; 0: unknown, no MFU
  int64_t memory_bytes = 0; // of the device, or of the host for CPU
};
DeviceInfo device_info(at::Device device);

// CUDA: peak bytes allocated by tensors since the last reset; CPU: peak resident bytes of the process.
int64_t peak_memory_bytes(at::Device device);
// CUDA: the most that the caching allocator had taken from the device; 0 on the CPU.
int64_t peak_reserved_bytes(at::Device device);
void reset_peak_memory(at::Device device);

// While it exists, and if `active`, anything that makes the host wait for a GPU is an error (c10::Error) as far as
// libtorch knows of it.
class ForbidSynchronization {
 public:
  explicit ForbidSynchronization(bool active);
  ~ForbidSynchronization();
  ForbidSynchronization(const ForbidSynchronization&) = delete;
  ForbidSynchronization& operator=(const ForbidSynchronization&) = delete;

 private:
  bool active_;
};

// Waits until the device has finished all that was queued.
void synchronize(at::Device device);

} // namespace distill::metrics
