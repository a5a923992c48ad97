// How many blocks of the streaming row kernel share a row.
#include "losses/rows/cuda/streaming/choose_blocks.h"

#include <gtest/gtest.h>

namespace distill::losses::streaming {
namespace {

// Three blocks on each of 132 multiprocessors, 60 MiB of L2. A cluster lies within 16 or 18 multiprocessors.
Occupancy hopper() {
  Occupancy found;
  found.rows_at_once = {0, 396, 198, 124, 92, 69, 62, 47, 45, 37, 30, 28, 28, 22, 21, 21, 21};
  found.slot_bytes = 73728;
  found.l2_bytes = 60 << 20;
  return found;
}

int chosen(const Occupancy& occupancy, int64_t vocab, int sides) {
  return best_blocks(occupancy, vocab * sides * 4, kMaxBlocks);
}

TEST(ChooseBlocks, TheFewestWhoseRowsStayInTheCache) {
  EXPECT_EQ(chosen(hopper(), 32000, 1), 1);
  EXPECT_EQ(chosen(hopper(), 32000, 2), 2);
  EXPECT_EQ(chosen(hopper(), 128256, 1), 3);
  EXPECT_EQ(chosen(hopper(), 128256, 2), 5);
  EXPECT_EQ(chosen(hopper(), 262144, 2), 9);
}

TEST(ChooseBlocks, TheMostWhereNoneIsEnough) {
  EXPECT_EQ(chosen(hopper(), 4000000, 2), 16);
}

TEST(ChooseBlocks, NoMoreThanThereArePiecesOfTheRow) {
  EXPECT_EQ(best_blocks(hopper(), 4000000 * 4, /*most=*/3), 3);
}

TEST(ChooseBlocks, OneWhereTheDeviceHasNoClusters) {
  Occupancy found;
  found.rows_at_once[1] = 216;
  found.slot_bytes = 53248;
  found.l2_bytes = 40 << 20;
  EXPECT_EQ(chosen(found, 262144, 2), 1);
  EXPECT_EQ(best_blocks(Occupancy{}, 1000, 16), 1);
}

} // namespace
} // namespace distill::losses::streaming
