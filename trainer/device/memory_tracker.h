#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/device/label_scope.h"
#include "trainer/device/memory_use.h"

// Counts a rank's device memory by category at each allocation: the allocator of the device reports every block, and
// the code that makes a tensor labels it with its category. The memory plan predicts the same categories.
namespace distill::device {

// An allocation or a release, for timelines. A tensor that is labelled leaves its category and enters another at once.
struct MemoryEvent {
  int64_t time_us = 0; // since the tracker began
  uint64_t address = 0;
  int64_t bytes = 0; // negative: released
  Category category = Category::kWorkspace;
  MemoryPhase phase = MemoryPhase::kStart;
};

// Counts every block that the device's allocator hands out from now on. CUDA: costs a table entry per block. CPU:
// replaces libtorch's allocator by one that counts. A process calls it once; later calls for the same device do
// nothing.
void track_memory(at::Device device);
bool is_tracking();

// Sets the category of a tensor's block, in this run's accounting or in that of the simulation that the tensor belongs
// to. Does nothing for a tensor that is undefined or whose memory is not tracked.
void label(const at::Tensor& tensor, Category category);

// Begins a phase of the thread's simulation, or of this run if there is none.
void enter_phase(MemoryPhase phase);

MemoryUse memory_use();
// Resets the peaks to the bytes allocated now.
void reset_memory_peaks();

// Records up to `max_events` events from now on.
void record_memory_events(size_t max_events);
std::vector<MemoryEvent> memory_events();

// Limits the CPU's tensors: an allocation that would take the tracked total beyond `bytes` throws
// c10::OutOfMemoryError, as a device that is full does. 0: no limit.
void limit_cpu_memory(int64_t bytes);

// Counts a tensor's memory on the device that its allocator does not hand out: in the current LabelScope's category,
// and in allocator_bytes() (device_hooks.h), both until it is released.
void count_outside(const void* address, int64_t bytes);
void release_outside(const void* address);
int64_t outside_bytes(); // counted and not released

// The last request that could not be met, and the bytes allocated at that moment.
struct FailedRequest {
  int64_t bytes = 0; // 0: there was none
  CategoryBytes held{};
  MemoryPhase phase = MemoryPhase::kStart;
};
FailedRequest failed_request();

// The allocators call these functions.
namespace hooks {
void on_allocate(const void* address, int64_t bytes);
void on_release(const void* address);
void on_failure(int64_t bytes);
} // namespace hooks

} // namespace distill::device
