#include "trainer/device/memory_tracker.h"

#include <absl/container/flat_hash_map.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "trainer/device/device_hooks.h"
#include "trainer/device/simulation.h"

namespace distill::device {
namespace {

struct LiveBlock {
  int64_t bytes = 0;
  Category category = Category::kWorkspace;
};

// The allocators' hooks are global, and so is their data.
struct Tracker {
  std::mutex mutex;
  absl::flat_hash_map<const void*, LiveBlock> live;
  MemoryLedger ledger;
  int64_t cpu_limit = 0;
  FailedRequest failed;
  std::vector<MemoryEvent> events;
  size_t max_events = 0;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  void record(const void* address, int64_t bytes, Category category) {
    if (events.size() < max_events) {
      const auto elapsed = std::chrono::steady_clock::now() - began;
      events.push_back(
          {std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count(), reinterpret_cast<uint64_t>(address),
           bytes, category, ledger.phase()});
    }
  }
};

Tracker& tracker() {
  static Tracker* const one = new Tracker; // outlives every tensor
  return *one;
}
std::atomic<bool> tracking = false;

// Memory that count_outside() has counted, apart from the tracker's table, which has the allocators' blocks too.
struct Outside {
  std::mutex mutex;
  absl::flat_hash_map<const void*, int64_t> live;
  int64_t bytes = 0;
};
Outside& outside() {
  static Outside* const one = new Outside; // outlives every tensor
  return *one;
}

// libtorch's CPU allocator, with every allocation counted.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    {
      Tracker& t = tracker();
      const std::lock_guard lock(t.mutex);
      if (t.cpu_limit > 0 && t.ledger.now() + static_cast<int64_t>(bytes) > t.cpu_limit) {
        t.failed = {static_cast<int64_t>(bytes), t.ledger.use().now, t.ledger.phase()};
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "tried to allocate ", bytes, " bytes on the CPU while ", t.ledger.now(),
            " are in use; the limit is ", t.cpu_limit);
      }
    }
    void* data = c10::alloc_cpu(bytes);
    hooks::on_allocate(data, static_cast<int64_t>(bytes));
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static void release(void* data) {
    hooks::on_release(data);
    c10::free_cpu(data);
  }
};

} // namespace

void track_memory(at::Device device) {
  if (tracking.exchange(true)) {
    return;
  }
  if (device.is_cpu()) {
    static CountingAllocator* const allocator = new CountingAllocator; // outlives every tensor
    c10::SetCPUAllocator(allocator);
  } else {
    hook_device_allocator(device);
  }
}

bool is_tracking() {
  return tracking;
}

void label(const at::Tensor& tensor, Category category) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return;
  }
  if (tensor.is_meta()) {
    if (Simulation* simulation = Simulation::current()) {
      simulation->label(tensor.storage().data(), category);
    }
    return;
  }
  if (!tracking) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  const auto found = t.live.find(tensor.storage().data());
  if (found == t.live.end() || found->second.category == category) {
    return;
  }
  t.record(found->first, -found->second.bytes, found->second.category);
  t.ledger.relabelled(found->second.category, category, found->second.bytes);
  found->second.category = category;
  t.record(found->first, found->second.bytes, category);
}

void enter_phase(MemoryPhase phase) {
  if (Simulation* simulation = Simulation::current()) {
    simulation->enter_phase(phase);
    return;
  }
  if (!tracking) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.ledger.enter(phase);
}

MemoryUse memory_use() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  return t.ledger.use();
}

void reset_memory_peaks() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.ledger.reset_peaks();
}

void record_memory_events(size_t max_events) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.max_events = max_events;
  t.events.clear();
  if (max_events > 0) {
    t.began = std::chrono::steady_clock::now();
    for (const auto& [address, block] : t.live) { // bytes that are allocated already
      t.record(address, block.bytes, block.category);
    }
  }
}

std::vector<MemoryEvent> memory_events() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  return t.events;
}

void limit_cpu_memory(int64_t bytes) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.cpu_limit = bytes;
}

void count_outside(const void* address, int64_t bytes) {
  {
    Outside& o = outside();
    const std::lock_guard lock(o.mutex);
    o.live[address] = bytes;
    o.bytes += bytes;
  }
  hooks::on_allocate(address, bytes);
}

void release_outside(const void* address) {
  hooks::on_release(address);
  Outside& o = outside();
  const std::lock_guard lock(o.mutex);
  if (const auto found = o.live.find(address); found != o.live.end()) {
    o.bytes -= found->second;
    o.live.erase(found);
  }
}

int64_t outside_bytes() {
  Outside& o = outside();
  const std::lock_guard lock(o.mutex);
  return o.bytes;
}

FailedRequest failed_request() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  return t.failed;
}

namespace hooks {

void on_allocate(const void* address, int64_t bytes) {
  if (address == nullptr) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  const Category category = current_category();
  t.live[address] = {bytes, category};
  t.ledger.allocated(category, bytes);
  t.record(address, bytes, category);
}

void on_release(const void* address) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  const auto found = t.live.find(address);
  if (found != t.live.end()) { // allocated before the tracker began
    t.ledger.released(found->second.category, found->second.bytes);
    t.record(address, -found->second.bytes, found->second.category);
    t.live.erase(found);
  }
}

void on_failure(int64_t bytes) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.failed = {bytes, t.ledger.use().now, t.ledger.phase()};
}

} // namespace hooks
} // namespace distill::device
