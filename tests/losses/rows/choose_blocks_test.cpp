// How many blocks of the streaming row kernel share a row.
#include "losses/rows/cuda/streaming/choose_blocks.h"

#include <gtest/gtest.h>

namespace distill::losses::streaming {
namespace {

// An H200: two blocks on each of 132 multiprocessors, seven slots of 16 KiB for each, 60 MiB of L2. A cluster lies
// within 16 or 18 multiprocessors.
Occupancy hopper() {
  Occupancy found;
  found.rows_at_once = {0, 264, 132, 79, 62, 47, 39, 32, 30, 23, 21, 16, 16, 14, 14, 14, 14};
  found.slot_bytes = 114688;
  found.l2_bytes = 60 << 20;
  return found;
}

// fp32 logits and a bf16 gradient.
RowBytes row_of(int64_t vocab, int sides) {
  return {.logits = vocab * sides * 4, .gradient = vocab * 2};
}

int chosen(const Occupancy& occupancy, int64_t vocab, int sides) {
  return best_blocks(occupancy, row_of(vocab, sides), kMaxBlocks);
}

// The fastest in docs/loss_head_notes.md, 2026-11-25, or one that is at most 7 % slower with one side, the labels' loss
// alone, and 2 % with two, JSD with the loss alone.
TEST(ChooseBlocks, TheFastestOnAnH200) {
  EXPECT_EQ(chosen(hopper(), 32000, 1), 1);
  EXPECT_EQ(chosen(hopper(), 32000, 2), 1);
  EXPECT_EQ(chosen(hopper(), 49152, 1), 1);
  EXPECT_EQ(chosen(hopper(), 49152, 2), 2);
  EXPECT_EQ(chosen(hopper(), 128256, 1), 3);
  EXPECT_EQ(chosen(hopper(), 128256, 2), 4);
  EXPECT_EQ(chosen(hopper(), 151936, 1), 3);
  EXPECT_EQ(chosen(hopper(), 151936, 2), 4);
  EXPECT_EQ(chosen(hopper(), 262144, 1), 5);
  EXPECT_EQ(chosen(hopper(), 262144, 2), 8);
  EXPECT_EQ(chosen(hopper(), 320000, 2), 8);
  EXPECT_EQ(chosen(hopper(), 430080, 1), 8);
  EXPECT_EQ(chosen(hopper(), 430080, 2), 16);
  EXPECT_EQ(chosen(hopper(), 512000, 1), 10);
  EXPECT_EQ(chosen(hopper(), 512000, 2), 16);
}

TEST(ChooseBlocks, ARowWithoutAGradientOfItsOwnLeavesMoreOfTheCache) {
  RowBytes in_place = row_of(49152, 2);
  in_place.gradient = 0;
  EXPECT_LT(block_cost(hopper(), in_place, 1), block_cost(hopper(), row_of(49152, 2), 1));
}

TEST(ChooseBlocks, IdleMultiprocessorsCost) {
  Occupancy found = hopper();
  found.rows_at_once[8] = 20;
  EXPECT_NE(chosen(found, 262144, 2), 8);
}

TEST(ChooseBlocks, NoMoreThanThereArePiecesOfTheRow) {
  EXPECT_EQ(best_blocks(hopper(), row_of(128256, 2), /*most=*/3), 3);
}

TEST(ChooseBlocks, OneWhereTheDeviceHasNoClusters) {
  Occupancy found;
  found.rows_at_once[1] = 216;
  found.slot_bytes = 53248;
  found.l2_bytes = 40 << 20;
  EXPECT_EQ(chosen(found, 262144, 2), 1);
  EXPECT_EQ(best_blocks(Occupancy{}, row_of(1000, 2), 16), 1);
}

} // namespace
} // namespace distill::losses::streaming
