#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace distill::device {

struct DeviceInfo {
  std::string name; // the vendor's, or "CPU"
  double peak_bf16_flops = 0; // dense, operations per second, from the vendor's data sheet; 0: unknown
  int64_t memory_bytes = 0; // of the GPU, or of the host for the CPU
};
DeviceInfo device_info(c10::Device device);
// The same figure for a device with this name; 0: unknown.
double peak_bf16_flops(std::string_view device_name);

// Tells whether the device computes products of float8 matrices itself: a GPU of compute capability 8.9 or newer (Ada,
// Hopper, Blackwell) does.
bool computes_float8(c10::Device device);

// Highest memory use so far. CUDA: bytes allocated by tensors since the peaks were reset. CPU: resident bytes of the
// process.
int64_t peak_memory_bytes(c10::Device device);

} // namespace distill::device
