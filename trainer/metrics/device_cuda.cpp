#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "trainer/metrics/device.h"
#include "trainer/metrics/host_memory.h"

namespace distill::metrics {
namespace {

// Dense bf16 peaks of NVIDIA's data sheets, SXM parts. The first name that the device's name contains counts.
constexpr std::pair<std::string_view, double> kPeakFlops[] = {
    {"H100 PCIe", 756e12}, {"H100 NVL", 835e12}, {"H100", 989e12}, {"H200", 989e12},     {"GH200", 989e12},
    {"B200", 2250e12},     {"B300", 2250e12},    {"A100", 312e12}, {"A800", 312e12},     {"H800", 989e12},
    {"L40S", 362e12},      {"L4", 121e12},       {"A10G", 70e12},  {"RTX 4090", 165e12}, {"RTX 3090", 71e12}};

} // namespace

int64_t cuda_device_count() {
  return c10::cuda::device_count();
}

DeviceInfo device_info(at::Device device) {
  if (!device.is_cuda()) {
    return {"CPU", 0, host_memory_bytes()};
  }
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  DeviceInfo info{properties.name, 0, static_cast<int64_t>(properties.totalGlobalMem)};
  for (const auto& [name, flops] : kPeakFlops) {
    if (info.name.find(name) != std::string::npos) {
      info.peak_bf16_flops = flops;
      break;
    }
  }
  return info;
}

int64_t peak_memory_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return peak_resident_bytes();
  }
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
}

int64_t peak_reserved_bytes(at::Device device) {
  return device.is_cuda() ? c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).reserved_bytes[0].peak : 0;
}

void reset_peak_memory(at::Device device) {
  if (device.is_cuda()) {
    c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  }
}

ForbidSynchronization::ForbidSynchronization(bool active) : active_(active) {
  if (active_) {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  }
}

ForbidSynchronization::~ForbidSynchronization() {
  if (active_) {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
}

void synchronize(at::Device device) {
  if (device.is_cuda()) {
    c10::cuda::CUDAGuard guard(device.index());
    c10::cuda::device_synchronize();
  }
}

} // namespace distill::metrics
