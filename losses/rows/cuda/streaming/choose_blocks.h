#pragma once

#include <array>
#include <cstdint>

#include "losses/rows/cuda/streaming/plan.h"

// These functions choose how many blocks of the streaming row kernel share a row.
namespace distill::losses::streaming {

// An Occupancy says what a device offers to one of the kernels.
struct Occupancy {
  std::array<int, kMaxBlocks + 1> rows_at_once{}; // by the number of blocks to a row; 0: the device runs none
  int64_t slot_bytes = 0; // of a block's shared memory for columns
  int64_t l2_bytes = 0;
};

// These are the bytes of one row.
struct RowBytes {
  int64_t logits = 0; // of both sides, at least 1
  int64_t gradient = 0; // 0 where there is none, or where it overwrites the logits
};

// Returns how long rows take with this many blocks to a row, relative to other numbers of blocks. With few blocks, more
// rows are worked on at once than the L2 cache and shared memory hold, and a pass reads from memory what the pass
// before has read. With many, blocks wait longer for each other, and some multiprocessors stay idle, since a cluster
// lies within a part of the device. rows_at_once[blocks] and rows_at_once[1] are not 0.
double block_cost(const Occupancy& occupancy, const RowBytes& row, int blocks);

// Returns the number of blocks, up to `most`, with the least cost; at least 1. The number of rows does not matter, so
// that a row's bits do not depend on it.
int best_blocks(const Occupancy& occupancy, const RowBytes& row, int most);

} // namespace distill::losses::streaming
