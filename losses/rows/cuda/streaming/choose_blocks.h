#pragma once

#include <array>
#include <cstdint>

#include "losses/rows/cuda/streaming/plan.h"

// How many blocks of the streaming row kernel share a row.
namespace distill::losses::streaming {

// What a device offers to one of the kernels.
struct Occupancy {
  std::array<int, kMaxBlocks + 1> rows_at_once{}; // by the number of blocks to a row; 0: the device runs none so
  int64_t slot_bytes = 0; // of a block's shared memory for columns
  int64_t l2_bytes = 0;
};

// The fewest blocks with which the rows that are worked on at once stay in the L2 cache, apart from what shared memory
// holds of them: a pass then reads what the pass before has read from there. More blocks wait longer for each other.
// Where no number is enough, the most blocks. The number of rows does not matter, so that a row's bits do not depend on
// it. row_bytes: of both sides' logits; most: no more blocks than this. At least 1.
int best_blocks(const Occupancy& occupancy, int64_t row_bytes, int most);

} // namespace distill::losses::streaming
