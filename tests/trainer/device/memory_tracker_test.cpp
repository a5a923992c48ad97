#include "trainer/device/memory_tracker.h"

#include <gtest/gtest.h>

#include "trainer/device/memory_viz.h"

namespace distill::device {
namespace {

int64_t now(Category category) {
  return memory_use().now[static_cast<size_t>(category)];
}

// A process has one tracker, so that each test looks at differences.
class MemoryTracker : public testing::Test {
 protected:
  void SetUp() override {
    track_memory(at::kCPU);
    enter_phase(MemoryPhase::kStart);
    reset_memory_peaks();
  }
};

TEST_F(MemoryTracker, CountsWhatATensorAllocatesUntilItGoes) {
  const int64_t before = now(Category::kWorkspace);
  at::Tensor tensor = at::empty({1000}, at::kFloat);
  EXPECT_EQ(now(Category::kWorkspace) - before, 4000);
  tensor.reset();
  EXPECT_EQ(now(Category::kWorkspace), before);
}

TEST_F(MemoryTracker, ALabelMovesATensorAndItsViewsToAnotherCategory) {
  const at::Tensor tensor = at::empty({10, 100}, at::kFloat);
  const int64_t before = now(Category::kActivations);
  label(tensor.narrow(0, 3, 2), Category::kActivations);
  EXPECT_EQ(now(Category::kActivations) - before, 4000);
}

TEST_F(MemoryTracker, AScopeLabelsWhatIsAllocatedWithinIt) {
  const int64_t head = now(Category::kHead), workspace = now(Category::kWorkspace);
  at::Tensor inside;
  {
    const LabelScope scope(Category::kHead);
    inside = at::empty({256}, at::kByte);
  }
  const at::Tensor outside = at::empty({128}, at::kByte);
  EXPECT_EQ(now(Category::kHead) - head, 256);
  EXPECT_EQ(now(Category::kWorkspace) - workspace, 128);
}

TEST_F(MemoryTracker, EachPhaseHasAPeakOfItsOwn) {
  const int64_t base = total(memory_use().now);
  enter_phase(MemoryPhase::kForward);
  { const at::Tensor large = at::empty({5000}, at::kByte); }
  enter_phase(MemoryPhase::kBackward);
  { const at::Tensor small = at::empty({1000}, at::kByte); }
  const MemoryUse use = memory_use();
  EXPECT_EQ(use.phases[static_cast<size_t>(MemoryPhase::kForward)].bytes - base, 5000);
  EXPECT_EQ(use.phases[static_cast<size_t>(MemoryPhase::kBackward)].bytes - base, 1000);
  EXPECT_EQ(use.peak() - base, 5000);
  EXPECT_EQ(use.peak_phase(), MemoryPhase::kForward);
}

TEST_F(MemoryTracker, ALimitThrowsWhatAFullDeviceThrows) {
  const at::Tensor held = at::empty({64}, at::kByte);
  limit_cpu_memory(total(memory_use().now) + 10'000);
  EXPECT_NO_THROW(at::empty({9000}, at::kByte));
  EXPECT_THROW(at::empty({11'000}, at::kByte), c10::OutOfMemoryError);
  EXPECT_EQ(failed_request().bytes, 11'000);
  EXPECT_GT(total(failed_request().held), 0);
  limit_cpu_memory(0);
  EXPECT_NO_THROW(at::empty({11'000}, at::kByte));
}

TEST_F(MemoryTracker, EventsAddUpToWhatIsAllocated) {
  record_memory_events(1000);
  const at::Tensor kept = at::empty({300}, at::kByte);
  { const at::Tensor gone = at::empty({200}, at::kByte); }
  int64_t sum = 0;
  for (const MemoryEvent& event : memory_events()) {
    sum += event.bytes;
  }
  EXPECT_EQ(sum, total(memory_use().now));
  EXPECT_FALSE(memory_viz_pickle(memory_events()).empty());
  record_memory_events(0);
}

TEST(BytesText, PicksTheUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1 << 20), "1.00 MiB");
  EXPECT_EQ(bytes_text(int64_t{150} << 30), "150.0 GiB");
}

} // namespace
} // namespace distill::device
