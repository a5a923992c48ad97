#include "trainer/device/device_info.h"

#include <string_view>
#include <utility>

#include "trainer/device/device_hooks.h"
#include "trainer/device/host_memory.h"

namespace distill::device {
namespace {

// Dense bf16 peaks of NVIDIA's data sheets, SXM parts. The first entry whose name is part of the device's name applies.
constexpr std::pair<std::string_view, double> kPeakFlops[] = {
    {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12}, {"H200", 989e12},     {"GH200", 989e12},
    {"B200", 2250e12},     {"B300", 2250e12},    {"A100", 312e12}, {"A800", 312e12},     {"H800", 989e12},
    {"L40S", 362e12},      {"L4", 121e12},       {"A10G", 70e12},  {"RTX 4090", 165e12}, {"RTX 3090", 71e12}};

} // namespace

double peak_bf16_flops(std::string_view device_name) {
  for (const auto& [name, flops] : kPeakFlops) {
    if (device_name.find(name) != std::string_view::npos) {
      return flops;
    }
  }
  return 0;
}

DeviceInfo device_info(c10::Device device) {
  if (!device.is_cuda()) {
    return {"CPU", 0, host_memory_bytes()};
  }
  const GpuProperties gpu = gpu_properties(device);
  return {gpu.name, peak_bf16_flops(gpu.name), gpu.memory_bytes};
}

bool computes_float8(c10::Device device) {
  constexpr int kFirstWithFloat8 = 89;
  return device.is_cuda() && gpu_properties(device).compute_capability >= kFirstWithFloat8;
}

int64_t peak_memory_bytes(c10::Device device) {
  return device.is_cuda() ? allocator_bytes(device).allocated_peak : peak_resident_bytes();
}

} // namespace distill::device
