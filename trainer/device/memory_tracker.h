#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/device/memory_use.h"

// Counts what a rank's device memory is used for where it is allocated: the allocator of the device reports every
// block, and whoever makes a tensor says what it is. The memory plan predicts the same categories.
namespace distill::device {

// One allocation or release, for timelines. A tensor that is labelled leaves its category and enters another at once.
struct MemoryEvent {
  int64_t time_us = 0; // since the tracker began
  uint64_t address = 0;
  int64_t bytes = 0; // negative: released
  Category category = Category::kWorkspace;
  MemoryPhase phase = MemoryPhase::kStart;
};

// From here on every block that the device's allocator hands out is counted. CUDA: costs a table entry per block. CPU:
// replaces libtorch's allocator by one that counts. Once for a process; later calls for the same device do nothing.
void track_memory(at::Device device);
bool is_tracking();

// What a tensor's block is: in this run's count, or in that of the simulation whose tensor it is. Nothing happens for a
// tensor that is not defined, or whose memory is not tracked.
void label(const at::Tensor& tensor, Category category);

// Blocks allocated by this thread while it lives are of this category, unless they are labelled.
class LabelScope {
 public:
  explicit LabelScope(Category category);
  ~LabelScope();
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  Category before_;
};

// The category of the innermost LabelScope.
Category current_category();

// The phase from here on: of the thread's simulation where there is one, otherwise of this run.
void enter_phase(MemoryPhase phase);

MemoryUse memory_use();
// Peaks start again from what is allocated now.
void reset_memory_peaks();

// Keeps up to `max_events` from now on.
void record_memory_events(size_t max_events);
std::vector<MemoryEvent> memory_events();

// On the CPU: an allocation that would take the tracked total beyond `bytes` throws c10::OutOfMemoryError, as a device
// that is full does. 0: no limit.
void limit_cpu_memory(int64_t bytes);

// The last request that could not be met, and what was allocated at that moment.
struct FailedRequest {
  int64_t bytes = 0; // 0: there was none
  CategoryBytes held{};
  MemoryPhase phase = MemoryPhase::kStart;
};
FailedRequest failed_request();

// For the allocators.
namespace hooks {
void on_allocate(const void* address, int64_t bytes);
void on_release(const void* address);
void on_failure(int64_t bytes);
} // namespace hooks

} // namespace distill::device
