#include "trainer/device/simulation.h"

#include <c10/core/Allocator.h>

#include <atomic>

#include "trainer/device/label_scope.h"
#include "trainer/device/meta_kernels.h"

namespace distill::device {
namespace {

thread_local Simulation* current_simulation = nullptr;
thread_local bool uncounted = false;
thread_local bool past_allocator = false;

// A block's address, which is never read or written. The low bits hold the entry, with the allocators' alignment, the
// high bits the simulation.
constexpr int kAlignmentBits = 9;
constexpr int kEntryBits = 40;

const void* address_of(uint64_t id, size_t entry) {
  return reinterpret_cast<const void*>(id << kEntryBits | (entry + 1) << kAlignmentBits);
}

// The allocator of libtorch's meta device; behaves as usual if no simulation runs on the thread.
class MetaAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* block = nullptr;
    if (current_simulation != nullptr && !uncounted) {
      block = const_cast<void*>(current_simulation->allocate(static_cast<int64_t>(bytes), past_allocator));
    }
    return {block, block, &release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* /*dest*/, const void* /*src*/, std::size_t /*count*/) const override {}

 private:
  static void release(void* block) {
    if (block != nullptr && current_simulation != nullptr) {
      current_simulation->release(block);
    }
  }
};

void install_allocator() {
  static const bool installed = [] {
    static MetaAllocator* const allocator = new MetaAllocator; // outlives every tensor
    constexpr uint8_t kHighestPriority = 255;
    c10::SetAllocator(c10::DeviceType::Meta, allocator, kHighestPriority);
    return true;
  }();
  (void)installed;
}

} // namespace

Simulation::Simulation(c10::DeviceType target, AllocatorKind kind, int64_t capacity)
    : target_(target),
      allocator_(target == c10::DeviceType::CUDA ? caching_allocator(kind, capacity) : exact_allocator()) {
  TORCH_CHECK(current_simulation == nullptr, "a thread runs one simulation at a time");
  static std::atomic<uint64_t> simulations = 0;
  id_ = ++simulations;
  install_allocator();
  register_meta_kernels();
  current_simulation = this;
}

Simulation::~Simulation() {
  current_simulation = nullptr;
}

Simulation* Simulation::current() {
  return current_simulation;
}

Simulation::Live* Simulation::find(const void* block) {
  const auto address = reinterpret_cast<uint64_t>(block);
  const uint64_t entry = ((address & ((uint64_t{1} << kEntryBits) - 1)) >> kAlignmentBits) - 1;
  const bool own = address >> kEntryBits == id_ && entry < live_.size() && live_[entry].in_use;
  return own ? &live_[entry] : nullptr;
}

const void* Simulation::allocate(int64_t bytes, bool directly) {
  if (bytes == 0) {
    return nullptr;
  }
  if (unused_.empty()) {
    unused_.push_back(live_.size());
    live_.emplace_back();
  }
  const size_t entry = unused_.back();
  unused_.pop_back();
  const void* block = address_of(id_, entry);
  Live& live = live_[entry];
  live = {
      .block = directly ? allocator_->allocate_directly(bytes) : allocator_->allocate(bytes),
      .category = current_category(),
      .in_use = true};
  if (trace_ != nullptr) {
    live.slot = static_cast<int64_t>(trace_->blocks.size());
    trace_->blocks.push_back(block);
    trace_->events.push_back({.slot = live.slot, .bytes = bytes});
  }
  ledger_.allocated(live.category, allocator_->size(live.block));
  reserved_peak_ = std::max(reserved_peak_, allocator_->reserved());
  return block;
}

void Simulation::trace_release(const void* block, const Live& live) {
  const bool inner = live.slot >= 0 && live.slot < static_cast<int64_t>(trace_->blocks.size()) &&
      trace_->blocks[static_cast<size_t>(live.slot)] == block;
  trace_->events.push_back({.slot = inner ? live.slot : -1, .outer = inner ? nullptr : block});
}

void Simulation::release(const void* block) {
  Live* live = find(block);
  if (live == nullptr) {
    return;
  }
  if (trace_ != nullptr) {
    trace_release(block, *live);
  }
  ledger_.released(live->category, allocator_->size(live->block));
  allocator_->release(live->block);
  live->in_use = false;
  unused_.push_back(static_cast<size_t>(live - live_.data()));
}

void Simulation::label(const void* block, Category category) {
  if (Live* live = find(block); live != nullptr && live->category != category) {
    ledger_.relabelled(live->category, category, allocator_->size(live->block));
    live->category = category;
  }
}

UncountedScope::UncountedScope() : before_(uncounted) {
  uncounted = true;
}

UncountedScope::~UncountedScope() {
  uncounted = before_;
}

DirectMemoryScope::DirectMemoryScope() : before_(past_allocator) {
  past_allocator = true;
}

DirectMemoryScope::~DirectMemoryScope() {
  past_allocator = before_;
}

c10::DeviceType kernel_device(at::Device device) {
  return device.is_meta() && current_simulation != nullptr ? current_simulation->target() : device.type();
}

} // namespace distill::device
