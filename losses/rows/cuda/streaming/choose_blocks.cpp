#include "losses/rows/cuda/streaming/choose_blocks.h"

#include <algorithm>

namespace distill::losses::streaming {

namespace {

// Of the L2 cache. The rest is for the gradient on its way out, and since rows do not keep step. Measured on one H200,
// docs/loss_head_notes.md.
constexpr double kShareOfL2 = 0.85;

} // namespace

int best_blocks(const Occupancy& occupancy, int64_t row_bytes, int most) {
  int best = 1;
  for (int blocks = 1; blocks <= std::min(most, kMaxBlocks); ++blocks) {
    const int64_t at_once = occupancy.rows_at_once[static_cast<size_t>(blocks)];
    if (at_once == 0) {
      continue;
    }
    best = blocks;
    const int64_t in_shared_memory = std::min(blocks * occupancy.slot_bytes, row_bytes);
    if (static_cast<double>(at_once * (row_bytes - in_shared_memory)) <=
        kShareOfL2 * static_cast<double>(occupancy.l2_bytes)) {
      break;
    }
  }
  return best;
}

} // namespace distill::losses::streaming
