#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "trainer/device/device_hooks.h"
#include "trainer/device/libtorch_messages.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/nvml.h"
#include "trainer/device/small_copy_kernel.h"

namespace distill::device {

namespace allocator = c10::cuda::CUDACachingAllocator;

int64_t cuda_device_count() {
  return c10::cuda::device_count();
}

GpuProperties gpu_properties(at::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  return {properties.name, static_cast<int64_t>(properties.totalGlobalMem), 10 * properties.major + properties.minor};
}

namespace {

// Takes a first block from expandable segments; returns what is in the way of it, or nothing.
std::string expandable_problem(at::Device device) {
  try {
    const at::Tensor probe = at::empty({1}, at::TensorOptions().device(device));
    const auto segments = allocator::snapshot().segments;
    const bool found = std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
      return segment.device == device.index() && segment.is_expandable;
    });
    return found ? "" : "libtorch has none on this platform";
  } catch (const c10::Error& error) {
    const std::string text = error_text(error);
    return text.substr(0, text.find('\n'));
  }
}

std::string pci_bus_id(at::Device device) {
  std::array<char, 32> id{};
  return cudaDeviceGetPCIBusId(id.data(), id.size(), device.index()) == cudaSuccess ? id.data() : "";
}

} // namespace

AllocatorSettings use_allocator(at::Device device, AllocatorSettings settings) {
  if (!device.is_cuda() || settings.by_user) {
    return settings;
  }
  at::globalContext().lazyInitDevice(at::kCUDA); // there is no allocator before this call
  c10::CachingAllocator::setAllocatorSettings(settings.text);
  if (settings.kind != AllocatorKind::kExpandable) {
    return settings;
  }
  const std::string problem = expandable_problem(device);
  if (!problem.empty()) {
    settings = allocator_settings(AllocatorKind::kSegments);
    settings.note = absl::StrCat("expandable segments cannot be had: ", problem);
    c10::CachingAllocator::setAllocatorSettings(settings.text);
  }
  return settings;
}

void empty_allocator_cache(at::Device device) {
  if (device.is_cuda()) {
    allocator::emptyCache();
  }
}

void synchronize(at::Device device) {
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device.index());
    c10::cuda::device_synchronize();
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

AllowSynchronization::AllowSynchronization()
    : previous_(static_cast<int>(c10::cuda::warning_state().get_sync_debug_mode())) {
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

AllowSynchronization::~AllowSynchronization() {
  c10::cuda::warning_state().set_sync_debug_mode(static_cast<c10::cuda::SyncDebugMode>(previous_));
}

void hook_device_allocator(at::Device device) {
  at::globalContext().lazyInitDevice(at::kCUDA); // there is no allocator before this call
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  // The allocator calls this under its lock: nothing here may allocate device memory.
  allocator::attachAllocatorTraceTracker([index = device.index()](const Entry& entry) {
    if (entry.device_ != index) {
      return;
    }
    const auto* address = reinterpret_cast<const void*>(entry.addr_);
    if (entry.action_ == Entry::ALLOC) {
      hooks::on_allocate(address, static_cast<int64_t>(entry.size_));
    } else if (entry.action_ == Entry::FREE_COMPLETED) {
      hooks::on_release(address);
    }
  });
  allocator::attachOutOfMemoryObserver([](int64_t, int64_t bytes, int64_t, int64_t) { hooks::on_failure(bytes); });
}

const char* pin_host_memory(void* data, size_t bytes) {
  const cudaError_t error = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return cudaGetErrorString(error);
  }
  return nullptr;
}

void unpin_host_memory(void* data) {
  (void)cudaHostUnregister(data);
}

void run_on_host(at::Device device, std::function<void()> work) {
  if (!device.is_cuda()) {
    work();
    return;
  }
  const auto run = [](void* data) noexcept {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(data));
    (*owned)();
  };
  auto owned = std::make_unique<std::function<void()>>(std::move(work));
  C10_CUDA_CHECK(cudaLaunchHostFunc(c10::cuda::getCurrentCUDAStream(device.index()), run, owned.get()));
  (void)owned.release(); // `run` owns it now
}

void copy_by_kernel(at::Tensor to, const at::Tensor& from) {
  const at::Tensor& host = to.is_cpu() ? to : from;
  const c10::cuda::CUDAGuard guard(to.is_cpu() ? from.device() : to.device());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const char* problem =
      launch_small_copy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<int64_t>(from.nbytes()), stream);
  TORCH_CHECK(problem == nullptr, "copy_small: ", problem);
  // Pinned memory that is freed is not used again before the kernel has ended.
  at::getHostAllocator(at::kCUDA)->record_event(
      const_cast<void*>(host.const_data_ptr()), host.storage().data_ptr().get_context(), stream.unwrap());
}

std::optional<int> numa_node(at::Device device) {
  std::string name = device.is_cuda() ? pci_bus_id(device) : "";
  if (name.empty()) {
    return std::nullopt;
  }
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? std::optional(node) : std::nullopt;
}

AllocatorBytes allocator_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return {};
  }
  const auto stats = allocator::getDeviceStats(device.index());
  const int64_t outside = outside_bytes();
  return {
      stats.allocated_bytes[0].current + outside, stats.allocated_bytes[0].peak + outside,
      stats.reserved_bytes[0].current + outside, stats.reserved_bytes[0].peak + outside};
}

void reset_allocator_peaks(at::Device device) {
  if (device.is_cuda()) {
    allocator::resetPeakStats(device.index());
  }
}

int64_t used_device_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return 0;
  }
  const c10::cuda::CUDAGuard guard(device.index());
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total - free);
}

int64_t bytes_outside_allocator(at::Device device) {
  return used_device_bytes(device) - allocator_bytes(device).reserved;
}

int64_t bytes_of_other_processes(at::Device device) {
  static std::map<c10::DeviceIndex, int64_t> first;
  if (!device.is_cuda()) {
    return 0;
  }
  const auto [found, is_new] = first.try_emplace(device.index(), 0);
  if (is_new && !c10::cuda::hasPrimaryContext(device.index())) {
    found->second = nvml_used_bytes(pci_bus_id(device)).value_or(0);
  }
  return found->second;
}

void limit_device_memory(at::Device device, int64_t bytes) {
  if (!device.is_cuda()) {
    return;
  }
  const c10::cuda::CUDAGuard guard(device.index());
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  allocator::setMemoryFraction(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total)), device.index());
}

void record_allocator_history(bool enabled) {
  torch::cuda::_record_memory_history(
      enabled ? std::optional<std::string>("all") : std::nullopt, /*context=*/std::nullopt, /*stacks=*/"python",
      /*max_entries=*/200'000);
}

std::string allocator_snapshot_pickle() {
  return torch::cuda::_memory_snapshot_pickled();
}

} // namespace distill::device
