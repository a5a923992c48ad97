#include "trainer/device/simulation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "trainer/device/host_slab.h"
#include "trainer/device/memory_tracker.h"

namespace distill::device {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor meta_bytes(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
}

int64_t highest(const Simulation& simulation, MemoryPhase phase, Category category) {
  return simulation.use().phases[static_cast<size_t>(phase)].highest[static_cast<size_t>(category)];
}

TEST(Simulation, ThePeakIsThatOfLifetimesAndNotASum) {
  Simulation simulation(c10::DeviceType::CPU);
  const at::Tensor whole_run = [] {
    const LabelScope label(Category::kStudent);
    return meta_bytes(100);
  }();
  enter_phase(MemoryPhase::kForward);
  { const at::Tensor first = meta_bytes(60); }
  enter_phase(MemoryPhase::kBackward);
  at::Tensor second = meta_bytes(50);
  label(second, Category::kGradients);
  second.reset();
  EXPECT_EQ(simulation.use().peak(), 160);
  EXPECT_EQ(simulation.use().peak_phase(), MemoryPhase::kForward);
  EXPECT_EQ(simulation.use().phases[static_cast<size_t>(MemoryPhase::kBackward)].bytes, 150);
  EXPECT_EQ(highest(simulation, MemoryPhase::kBackward, Category::kGradients), 50);
  EXPECT_EQ(highest(simulation, MemoryPhase::kForward, Category::kStudent), 100);
  EXPECT_EQ(simulation.allocated(), 100);
}

TEST(Simulation, ViewsTakeNothingAndOpsTakeTheirResults) {
  Simulation simulation(c10::DeviceType::CPU);
  const auto matrix = [] { return at::empty({64, 32}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta)); };
  const at::Tensor a = matrix();
  const at::Tensor view = a.t().narrow(0, 0, 8);
  EXPECT_EQ(simulation.allocated(), 64 * 32 * 4);
  const at::Tensor product = at::mm(a, a.t());
  EXPECT_EQ(simulation.allocated(), 64 * 32 * 4 + 64 * 64 * 4);
}

TEST(Simulation, TheTargetDecidesWhatABlockTakes) {
  {
    Simulation simulation(c10::DeviceType::CPU);
    const at::Tensor tensor = meta_bytes(1000);
    EXPECT_EQ(simulation.allocated(), 1000);
    EXPECT_TRUE(runs_on_cpu(tensor));
    EXPECT_FALSE(runs_on_cuda(tensor));
  }
  Simulation simulation(c10::DeviceType::CUDA);
  const at::Tensor tensor = meta_bytes(1000);
  EXPECT_EQ(simulation.allocated(), 1024); // a multiple of 512
  EXPECT_EQ(simulation.reserved_peak(), 2 * kMiB); // of a segment
  EXPECT_TRUE(runs_on_cuda(tensor));
}

TEST(Simulation, TensorsMayOutliveIt) {
  at::Tensor survivor;
  {
    Simulation simulation(c10::DeviceType::CPU);
    survivor = meta_bytes(100);
  }
  const at::Tensor outside = meta_bytes(10); // no simulation: nothing is counted, nothing fails
  Simulation simulation(c10::DeviceType::CPU);
  const at::Tensor own = meta_bytes(30);
  survivor.reset();
  label(outside, Category::kHead);
  EXPECT_EQ(simulation.allocated(), 30);
}

TEST(Simulation, AThreadRunsOneAtATime) {
  const Simulation simulation(c10::DeviceType::CPU);
  EXPECT_THROW(Simulation(c10::DeviceType::CPU), c10::Error);
}

TEST(Simulation, HostMemoryIsCountedByItsSlabAlone) {
  Simulation simulation(c10::DeviceType::CUDA);
  const auto slab = HostSlab::simulated();
  const at::Tensor host = HostSlab::take(slab, 1000);
  EXPECT_TRUE(host.is_meta());
  EXPECT_EQ(slab->used(), 1024);
  EXPECT_EQ(simulation.allocated(), 0);
}

TEST(Simulation, ATraceTellsItsOwnBlocksFromOthers) {
  Simulation simulation(c10::DeviceType::CPU);
  at::Tensor before = meta_bytes(7);
  const void* outer = before.storage().data();
  AllocationTrace trace;
  simulation.record(&trace);
  at::Tensor first = meta_bytes(10);
  const at::Tensor second = meta_bytes(20);
  first.reset();
  before.reset();
  simulation.record(nullptr);
  const at::Tensor later = meta_bytes(30);
  ASSERT_EQ(trace.events.size(), 4U);
  EXPECT_EQ(trace.events[0].slot, 0);
  EXPECT_EQ(trace.events[0].bytes, 10);
  EXPECT_EQ(trace.events[1].bytes, 20);
  EXPECT_EQ(trace.events[2].slot, 0);
  EXPECT_EQ(trace.events[2].bytes, 0);
  EXPECT_EQ(trace.events[3].slot, -1);
  EXPECT_EQ(trace.events[3].outer, outer);
}

} // namespace
} // namespace distill::device
