#include "trainer/device/allocator_model.h"

#include <gtest/gtest.h>

#include <vector>

namespace distill::device {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(Segments, RoundsRequestsToBlocksAndTakesSegments) {
  const auto allocator = caching_allocator(AllocatorKind::kSegments);
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

TEST(Segments, ALargeBlockKeepsARestThatIsNotWorthSplitting) {
  const auto allocator = caching_allocator(AllocatorKind::kSegments);
  const BlockId block = allocator->allocate(31 * kMiB + 4096); // of a segment of 32 MiB
  EXPECT_EQ(allocator->size(block), 32 * kMiB);
  const BlockId other = allocator->allocate(40 * kMiB - 4096);
  EXPECT_EQ(allocator->size(other), 40 * kMiB);
}

TEST(Segments, MergesNeighboursAndFitsBest) {
  const auto allocator = caching_allocator(AllocatorKind::kSegments);
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

TEST(Segments, AFullDeviceGetsWholeSegmentsBack) {
  const auto allocator = caching_allocator(AllocatorKind::kSegments, 50 * kMiB);
  const BlockId whole = allocator->allocate(20 * kMiB);
  allocator->allocate(4 * kMiB); // of a segment of 20 MiB, whose rest stays
  allocator->release(whole);
  allocator->allocate(30 * kMiB); // 40 MiB are taken, half of which are free
  EXPECT_EQ(allocator->reserved(), 50 * kMiB);
  EXPECT_EQ(allocator->give_backs(), 1);
  allocator->allocate(18 * kMiB); // nothing is left to give back: the request does not fit
  EXPECT_EQ(allocator->reserved(), 68 * kMiB);
}

TEST(Expandable, MapsPagesAndSplitsEveryRest) {
  const auto allocator = caching_allocator(AllocatorKind::kExpandable);
  allocator->allocate(1);
  EXPECT_EQ(allocator->reserved(), 2 * kMiB); // a page of the small pool
  allocator->allocate(kMiB);
  allocator->allocate(kMiB); // 512 bytes more than are left
  EXPECT_EQ(allocator->reserved(), 4 * kMiB);
  allocator->allocate(3 * kMiB);
  EXPECT_EQ(allocator->reserved(), 24 * kMiB); // a page of the large pool
  allocator->allocate(15 * kMiB + 1);
  EXPECT_EQ(allocator->reserved(), 24 * kMiB);
  const BlockId block = allocator->allocate(30 * kMiB + 4096); // begins in the 2 MiB - 512 bytes that are left
  EXPECT_EQ(allocator->size(block), 30 * kMiB + 4096);
  EXPECT_EQ(allocator->reserved(), 64 * kMiB);
}

TEST(Expandable, AFreeBlockThatCanGrowCountsAsWhatItCanGrowTo) {
  const auto allocator = caching_allocator(AllocatorKind::kExpandable);
  const BlockId hole = allocator->allocate(4 * kMiB);
  allocator->allocate(14 * kMiB);
  allocator->release(hole); // free: 4 MiB between others, and 2 MiB at the end, which can grow
  allocator->allocate(3 * kMiB / 2); // into the hole, although the end would fit better
  allocator->allocate(3 * kMiB); // 2.5 MiB are left of the hole: the end grows
  EXPECT_EQ(allocator->reserved(), 40 * kMiB);
}

TEST(Expandable, AFullDeviceGetsWholePagesBackAndTheGapIsFilledFirst) {
  const auto allocator = caching_allocator(AllocatorKind::kExpandable, 152 * kMiB);
  const BlockId direct = allocator->allocate_directly(30 * kMiB); // with its pad 32 MiB
  const BlockId first = allocator->allocate(20 * kMiB);
  const BlockId second = allocator->allocate(20 * kMiB);
  allocator->allocate(20 * kMiB);
  allocator->release(first);
  EXPECT_EQ(allocator->reserved(), 92 * kMiB);
  allocator->allocate(70 * kMiB); // four pages at the end, after the free one has gone back
  EXPECT_EQ(allocator->reserved(), 152 * kMiB);
  EXPECT_EQ(allocator->give_backs(), 1);
  allocator->release(direct);
  allocator->release(second);
  allocator->allocate(40 * kMiB); // the gap's page and the free one after it
  EXPECT_EQ(allocator->reserved(), 140 * kMiB);
  EXPECT_EQ(allocator->give_backs(), 1);
  allocator->allocate(20 * kMiB); // 10 MiB of the last page are free, and a page more is beyond the capacity
  EXPECT_EQ(allocator->reserved(), 160 * kMiB);
  EXPECT_EQ(allocator->give_backs(), 2);
}

TEST(Expandable, AStepThatRepeatsTakesNothingMore) {
  const auto allocator = caching_allocator(AllocatorKind::kExpandable);
  const std::vector<int64_t> sizes = {7 * kMiB, 300, 45 * kMiB + 512, kMiB, 19 * kMiB, 2 * kMiB};
  const auto step = [&] {
    std::vector<BlockId> blocks;
    blocks.reserve(blocks.size() + sizes.size());
    for (const int64_t size : sizes) {
      blocks.push_back(allocator->allocate(size));
    }
    for (const BlockId block : blocks) {
      allocator->release(block);
    }
  };
  step();
  const int64_t reserved = allocator->reserved();
  EXPECT_EQ(reserved, (2 + 80) * kMiB); // 73 MiB of large blocks in pages of 20
  step();
  EXPECT_EQ(allocator->reserved(), reserved);
}

TEST(AllocatorSettings, TheUsersVariableComesFirst) {
  const AllocatorSettings plain = allocator_settings(AllocatorKind::kExpandable, nullptr, nullptr);
  EXPECT_EQ(plain.text, "expandable_segments:True");
  EXPECT_FALSE(plain.by_user);
  EXPECT_TRUE(plain.note.empty());
  const char* const own = "max_split_size_mb:64, expandable_segments : False";
  const AllocatorSettings users = allocator_settings(AllocatorKind::kExpandable, "PYTORCH_ALLOC_CONF", own);
  EXPECT_EQ(users.kind, AllocatorKind::kSegments);
  EXPECT_TRUE(users.by_user);
  EXPECT_NE(users.note.find("PYTORCH_ALLOC_CONF"), std::string::npos) << users.note;
}

TEST(AllocatorSettings, OtherSettingsOfTheUserStay) {
  const AllocatorSettings settings =
      allocator_settings(AllocatorKind::kSegments, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64");
  EXPECT_EQ(settings.text, "max_split_size_mb:64,expandable_segments:False");
  EXPECT_FALSE(settings.by_user);
  EXPECT_NE(settings.note.find("max_split_size_mb"), std::string::npos) << settings.note;
}

} // namespace
} // namespace distill::device
