#include "trainer/checkpoint/snapshot.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>

namespace distill::checkpoint {
namespace {

TEST(SnapshotTest, TheUpdateWaitsForTheCopy) {
  const at::Tensor state = at::arange(1 << 20, at::kFloat);
  const at::Tensor memory = at::empty({static_cast<int64_t>(state.nbytes())}, at::kByte);
  Snapshot snapshot(memory, at::kCPU);
  snapshot.take({{"state", state}});
  const auto copy = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    snapshot.copy();
  });
  snapshot.before_update();
  state.fill_(-1);
  copy.wait();
  EXPECT_TRUE(memory.view(at::kFloat).equal(at::arange(1 << 20, at::kFloat)));
  EXPECT_GT(snapshot.stall_seconds(), 0.02);
  EXPECT_EQ(snapshot.stall_seconds(), 0) << "counted once";
}

TEST(SnapshotTest, AnErrorInTheCopyEndsTheWait) {
  Snapshot snapshot(at::empty({16}, at::kByte), at::kCPU);
  snapshot.take({{"state", at::zeros({4}, at::TensorOptions(at::kFloat).device(at::kMeta))}}); // nothing to copy from
  auto copy = std::async(std::launch::async, [&] { snapshot.copy(); });
  snapshot.before_update();
  EXPECT_THROW(copy.get(), c10::Error);
}

TEST(SnapshotTest, RefusesTensorsOfAnotherSizeThanItsMemory) {
  Snapshot snapshot(at::empty({16}, at::kByte), at::kCPU);
  EXPECT_THROW(snapshot.take({{"state", at::zeros({5}, at::kFloat)}}), c10::Error);
  EXPECT_THROW(snapshot.take({{"state", at::zeros({2, 2}, at::kFloat).t()}}), c10::Error);
  snapshot.before_update(); // nothing was taken, nothing to wait for
}

} // namespace
} // namespace distill::checkpoint
