#include "trainer/device/memory_tracker.h"

#include <absl/container/flat_hash_map.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "trainer/device/device_hooks.h"

namespace distill::device {
namespace {

thread_local Category current_category = Category::kWorkspace;

struct LiveBlock {
  int64_t bytes = 0;
  Category category = Category::kWorkspace;
};

// The allocators' hooks are global, and so is what they fill.
struct Tracker {
  std::mutex mutex;
  absl::flat_hash_map<const void*, LiveBlock> live;
  MemoryUse use;
  MemoryPhase phase = MemoryPhase::kStart;
  int64_t now = 0;
  int64_t cpu_limit = 0;
  FailedRequest failed;
  std::vector<MemoryEvent> events;
  size_t max_events = 0;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  void changed() {
    PhasePeak& peak = use.phases[static_cast<size_t>(phase)];
    if (now > peak.bytes) {
      peak.bytes = now;
      peak.at_peak = use.now;
    }
    for (size_t i = 0; i < kNumCategories; ++i) {
      peak.highest[i] = std::max(peak.highest[i], use.now[i]);
    }
  }
  void add(Category category, int64_t bytes) {
    use.now[static_cast<size_t>(category)] += bytes;
    now += bytes;
  }
  void record(const void* address, int64_t bytes, Category category) {
    if (events.size() < max_events) {
      const auto elapsed = std::chrono::steady_clock::now() - began;
      events.push_back(
          {std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count(), reinterpret_cast<uint64_t>(address),
           bytes, category, phase});
    }
  }
};

Tracker& tracker() {
  static Tracker* const one = new Tracker; // outlives every tensor
  return *one;
}
std::atomic<bool> tracking = false;

// libtorch's CPU allocation, counted.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    {
      Tracker& t = tracker();
      const std::lock_guard lock(t.mutex);
      if (t.cpu_limit > 0 && t.now + static_cast<int64_t>(bytes) > t.cpu_limit) {
        t.failed = {static_cast<int64_t>(bytes), t.use.now, t.phase};
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "tried to allocate ", bytes, " bytes on the CPU beside ", t.now, "; the limit is ",
            t.cpu_limit);
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

const char* category_name(Category category) {
  constexpr const char* kNames[] = {"student",     "master", "moments", "gradients", "teacher",  "slots",
                                    "activations", "hidden", "head",    "staging",   "workspace"};
  static_assert(std::size(kNames) == kNumCategories);
  return kNames[static_cast<size_t>(category)];
}

const char* phase_name(MemoryPhase phase) {
  constexpr const char* kNames[] = {"start", "teacher", "forward", "head", "backward", "optimizer", "between"};
  static_assert(std::size(kNames) == kNumMemoryPhases);
  return kNames[static_cast<size_t>(phase)];
}

int64_t total(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t value : bytes) {
    sum += value;
  }
  return sum;
}

MemoryPhase MemoryUse::peak_phase() const {
  size_t best = 0;
  for (size_t i = 1; i < kNumMemoryPhases; ++i) {
    if (phases[i].bytes > phases[best].bytes) {
      best = i;
    }
  }
  return static_cast<MemoryPhase>(best);
}

int64_t MemoryUse::peak() const {
  return phases[static_cast<size_t>(peak_phase())].bytes;
}

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
  if (!tracking || !tensor.defined() || !tensor.has_storage()) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  const auto found = t.live.find(tensor.storage().data());
  if (found == t.live.end() || found->second.category == category) {
    return;
  }
  t.add(found->second.category, -found->second.bytes);
  t.record(found->first, -found->second.bytes, found->second.category);
  found->second.category = category;
  t.add(category, found->second.bytes);
  t.record(found->first, found->second.bytes, category);
  t.changed();
}

LabelScope::LabelScope(Category category) : before_(current_category) {
  current_category = category;
}

LabelScope::~LabelScope() {
  current_category = before_;
}

void enter_phase(MemoryPhase phase) {
  if (!tracking) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.phase = phase;
  t.changed();
}

MemoryUse memory_use() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  return t.use;
}

void reset_memory_peaks() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.use.phases = {};
  t.changed();
}

void record_memory_events(size_t max_events) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.max_events = max_events;
  t.events.clear();
  if (max_events > 0) {
    t.began = std::chrono::steady_clock::now();
    for (const auto& [address, block] : t.live) { // what lives already
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

FailedRequest failed_request() {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  return t.failed;
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.*f %s", std::abs(value) < 10 ? 2 : 1, value, kUnits[unit]);
}

namespace hooks {

void on_allocate(const void* address, int64_t bytes) {
  if (address == nullptr) {
    return;
  }
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.live[address] = {bytes, current_category};
  t.add(current_category, bytes);
  t.changed();
  t.record(address, bytes, current_category);
}

void on_release(const void* address) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  const auto found = t.live.find(address);
  if (found != t.live.end()) { // allocated before the tracker began
    t.add(found->second.category, -found->second.bytes);
    t.record(address, -found->second.bytes, found->second.category);
    t.live.erase(found);
  }
}

void on_failure(int64_t bytes) {
  Tracker& t = tracker();
  const std::lock_guard lock(t.mutex);
  t.failed = {bytes, t.use.now, t.phase};
}

} // namespace hooks
} // namespace distill::device
