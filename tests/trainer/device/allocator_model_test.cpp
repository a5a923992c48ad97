#include "trainer/device/allocator_model.h"

#include <gtest/gtest.h>

namespace distill::device {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(CachingAllocator, RoundsRequestsToBlocksAndTakesSegments) {
  const auto allocator = caching_allocator();
  const BlockId tiny = allocator->allocate(1);
  EXPECT_EQ(allocator->size(tiny), 512);
  EXPECT_EQ(allocator->reserved(), 2 * kMiB); // a small segment
  allocator->allocate(kMiB); // from the same one
  EXPECT_EQ(allocator->reserved(), 2 * kMiB);
  allocator->allocate(3 * kMiB);
  EXPECT_EQ(allocator->reserved(), 22 * kMiB); // a large one
  allocator->allocate(15 * kMiB + 1);
  EXPECT_EQ(allocator->reserved(), 22 * kMiB); // what is left of it
  allocator->allocate(30 * kMiB + 1);
  EXPECT_EQ(allocator->reserved(), 54 * kMiB); // one of its own, a multiple of 2 MiB
}

TEST(CachingAllocator, ALargeBlockKeepsARestThatIsNotWorthSplitting) {
  const auto allocator = caching_allocator();
  const BlockId block = allocator->allocate(31 * kMiB + 4096); // of a segment of 32 MiB
  EXPECT_EQ(allocator->size(block), 32 * kMiB);
  const BlockId other = allocator->allocate(40 * kMiB - 4096);
  EXPECT_EQ(allocator->size(other), 40 * kMiB);
}

TEST(CachingAllocator, MergesNeighboursAndFitsBest) {
  const auto allocator = caching_allocator();
  const BlockId a = allocator->allocate(4 * kMiB);
  const BlockId b = allocator->allocate(4 * kMiB);
  const BlockId c = allocator->allocate(4 * kMiB);
  allocator->release(a);
  allocator->release(c); // merges with the segment's rest: 4 MiB and 12 MiB are free
  EXPECT_EQ(allocator->size(allocator->allocate(4 * kMiB)), 4 * kMiB);
  EXPECT_EQ(allocator->size(allocator->allocate(9 * kMiB)), 9 * kMiB); // in the 12
  EXPECT_EQ(allocator->reserved(), 20 * kMiB);
  allocator->release(b);
  allocator->allocate(4 * kMiB);
  EXPECT_EQ(allocator->reserved(), 20 * kMiB);
}

} // namespace
} // namespace distill::device
