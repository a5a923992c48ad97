#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

// What a rank's device memory is used for, counted where it is allocated: the allocator of the device reports every
// block, and whoever makes a tensor says what it is. The memory plan predicts the same categories.
namespace distill::device {

enum class Category {
  kStudent, // the shards that are gathered, compute dtype
  kMaster, // fp32 master weights
  kMoments, // AdamW's two moments
  kGradients, // fp32 gradient shards
  kTeacher, // the frozen model's shards
  kSlots, // whole units: gathered weights, gradients on their way to the shards
  kActivations, // what the blocks keep for the backward pass
  kHidden, // final hidden states of both models, their gradient, what the final norm keeps
  kHead, // the loss head's scratch and rows
  kStaging, // optimizer state on its way between host and device
  kWorkspace, // everything else: temporaries of ops, tokens, angles
  kCount
};
inline constexpr size_t kNumCategories = static_cast<size_t>(Category::kCount);
const char* category_name(Category category);

// The parts of a run that have peaks of their own.
enum class MemoryPhase {
  kStart, // building, loading
  kTeacher,
  kForward,
  kHead,
  kBackward,
  kOptimizer,
  kBetween, // between two steps: evaluation, checkpoints
  kCount
};
inline constexpr size_t kNumMemoryPhases = static_cast<size_t>(MemoryPhase::kCount);
const char* phase_name(MemoryPhase phase);

using CategoryBytes = std::array<int64_t, kNumCategories>;
int64_t total(const CategoryBytes& bytes);

struct PhasePeak {
  int64_t bytes = 0;
  CategoryBytes at_peak{}; // what the peak is made of
  CategoryBytes highest{}; // each category's own highest, which need not be at the same moment
};

struct MemoryUse {
  CategoryBytes now{};
  std::array<PhasePeak, kNumMemoryPhases> phases;

  int64_t peak() const; // over all phases
  MemoryPhase peak_phase() const;
};

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

// What a tensor's block is. Nothing happens for a tensor that is not defined, or whose memory is not tracked.
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

// "1.23 GiB", "45.6 MiB": four figures at most.
std::string bytes_text(int64_t bytes);

// For the allocators.
namespace hooks {
void on_allocate(const void* address, int64_t bytes);
void on_release(const void* address);
void on_failure(int64_t bytes);
} // namespace hooks

} // namespace distill::device
