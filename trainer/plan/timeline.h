#pragma once

#include <memory>
#include <string>
#include <utility>

#include "trainer/device/memory_tracker.h"
#include "trainer/plan/allocator_model.h"

// A run's allocations in the order in which the host makes them, which is the order that decides what fits. The plan
// "runs" a step on a timeline: every buffer is made where the trainer makes its tensor and goes where the tensor goes.
namespace distill::plan {

using device::Category;
using device::MemoryPhase;

class Timeline;

// Stands for a tensor: gives its block back when it goes.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : timeline_(std::exchange(other.timeline_, nullptr)), block_(other.block_), category_(other.category_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      timeline_ = std::exchange(other.timeline_, nullptr);
      block_ = other.block_;
      category_ = other.category_;
    }
    return *this;
  }
  ~Buffer() {
    reset();
  }
  void reset();
  bool defined() const {
    return timeline_ != nullptr;
  }
  void label(Category category);

 private:
  friend class Timeline;
  Timeline* timeline_ = nullptr;
  BlockId block_ = 0;
  Category category_ = Category::kWorkspace;
};

class Timeline {
 public:
  explicit Timeline(std::unique_ptr<AllocatorModel> allocator) : allocator_(std::move(allocator)) {}

  // Nothing for 0 bytes.
  Buffer allocate(Category category, int64_t bytes);
  void enter(MemoryPhase phase);

  const device::MemoryUse& use() const {
    return use_;
  }
  int64_t reserved_peak() const {
    return reserved_peak_;
  }
  int64_t allocated() const {
    return now_;
  }

 private:
  friend class Buffer;
  void add(Category category, int64_t bytes);
  void changed();

  std::unique_ptr<AllocatorModel> allocator_;
  device::MemoryUse use_;
  MemoryPhase phase_ = MemoryPhase::kStart;
  int64_t now_ = 0;
  int64_t reserved_peak_ = 0;
};

} // namespace distill::plan
