#include "losses/rows/cuda/streaming/choose_blocks.h"

#include <algorithm>
#include <limits>

namespace distill::losses::streaming {

namespace {

// These numbers are fitted to times on H200s, docs/loss_head_notes.md; none of them can be measured alone.
constexpr double kWaitBytes = 52 << 10; // bytes of logits that a block would take while it waits for a row
constexpr double kOfL2 = 1.85; // bytes in use for each byte of the L2 cache, beyond which passes read from memory
constexpr double kGradients = 4; // a byte of a gradient takes as much of the cache as four of logits

} // namespace

double block_cost(const Occupancy& occupancy, const RowBytes& row, int blocks) {
  const double at_once = occupancy.rows_at_once[static_cast<size_t>(blocks)];
  const double idle = occupancy.rows_at_once[1] / (at_once * blocks);
  const double waiting = 1 + kWaitBytes * blocks / static_cast<double>(row.logits);
  const auto in_shared_memory = static_cast<double>(std::min(blocks * occupancy.slot_bytes, row.logits));
  const double in_cache =
      at_once * (static_cast<double>(row.logits) - in_shared_memory + kGradients * static_cast<double>(row.gradient));
  const double from_memory = std::max(0.0, 1 - kOfL2 * static_cast<double>(occupancy.l2_bytes) / in_cache);
  return idle * waiting * (1 + from_memory);
}

int best_blocks(const Occupancy& occupancy, const RowBytes& row, int most) {
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int blocks = 1; blocks <= std::min(most, kMaxBlocks); ++blocks) {
    if (occupancy.rows_at_once[static_cast<size_t>(blocks)] == 0) {
      continue;
    }
    const double cost = block_cost(occupancy, row, blocks);
    if (cost < least) {
      least = cost;
      best = blocks;
    }
  }
  return best;
}

} // namespace distill::losses::streaming
