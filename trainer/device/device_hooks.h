#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>

#include "trainer/device/allocator_kind.h"

// Functions that need CUDA: device_hooks_cuda.cpp or device_hooks_no_cuda.cpp.
namespace distill::device {

int64_t cuda_device_count(); // visible GPUs; 0 in a build without CUDA

struct GpuProperties {
  std::string name;
  int64_t memory_bytes = 0;
  int compute_capability = 0; // 10 * major + minor
};
GpuProperties gpu_properties(at::Device device);

// Makes the allocator of the settings the one of this process, and returns what it has become: where the driver cannot
// map memory by pages, kExpandable becomes kSegments, and the note says why. Settings by the user are left alone, and
// so is everything on the CPU. Call it before the device is used.
AllocatorSettings use_allocator(at::Device device, AllocatorSettings settings);
// Returns all free memory of the allocator to the device.
void empty_allocator_cache(at::Device device);

// Waits until the device has finished all queued work. Nothing on the CPU.
void synchronize(at::Device device);

// While an active object exists, a call that makes the host wait for a GPU throws c10::Error, if libtorch detects it.
class ForbidSynchronization {
 public:
  explicit ForbidSynchronization(bool active);
  ~ForbidSynchronization();
  ForbidSynchronization(const ForbidSynchronization&) = delete;
  ForbidSynchronization& operator=(const ForbidSynchronization&) = delete;

 private:
  bool active_;
};

// While an object exists, the host may wait for a GPU all the same: for a way of computing that cannot do without.
class AllowSynchronization {
 public:
  AllowSynchronization();
  ~AllowSynchronization();
  AllowSynchronization(const AllowSynchronization&) = delete;
  AllowSynchronization& operator=(const AllowSynchronization&) = delete;

 private:
  int previous_; // libtorch's mode
};

// The device's allocator reports to hooks:: (memory_tracker.h) from now on, failed requests included.
void hook_device_allocator(at::Device device);

// Makes mapped host memory known to the driver, so that copies to and from the device overlap with kernels. Returns
// null, or the driver's error message.
const char* pin_host_memory(void* data, size_t bytes);
void unpin_host_memory(void* data);

// Queues work of the host on the device's current stream: what was queued before is complete when it begins, and what
// is queued after waits for it. On a GPU a thread of the driver runs it, one such work at a time; it must not use the
// device, and what it throws ends the process. On the CPU it is complete on return.
void run_on_host(at::Device device, std::function<void()> work);

// Copies between pinned host memory and a GPU with a kernel on the GPU's current stream (small_copy.h).
void copy_by_kernel(at::Tensor to, const at::Tensor& from);

// NUMA node of the device; nullopt: unknown.
std::optional<int> numa_node(at::Device device);

// Bytes that tensors have allocated, and that the allocator has taken from the device; peaks since the last reset. All
// four include what count_outside() counts now (memory_tracker.h), which lives as long as a run's models do.
struct AllocatorBytes {
  int64_t allocated = 0;
  int64_t allocated_peak = 0;
  int64_t reserved = 0;
  int64_t reserved_peak = 0;
};
AllocatorBytes allocator_bytes(at::Device device); // zeros on the CPU
void reset_allocator_peaks(at::Device device);
// Bytes in use on the device by all processes; 0 on the CPU.
int64_t used_device_bytes(at::Device device);
// Bytes in use on the device by everything but this process's allocator and count_outside(): the driver, libraries,
// communicators, other processes; 0 on the CPU.
int64_t bytes_outside_allocator(at::Device device);
// Bytes that other processes had on the device before this one came to it. The first call decides, which has to come
// before all other uses of the device. 0: none, or unknown, as on the CPU and without NVIDIA's management library.
int64_t bytes_of_other_processes(at::Device device);

// The allocator takes no more than this from the device.
void limit_device_memory(at::Device device, int64_t bytes);

// Records every block from now on, and returns the record as a pickle for memory_viz; empty on the CPU.
void record_allocator_history(bool enabled);
std::string allocator_snapshot_pickle();

} // namespace distill::device
