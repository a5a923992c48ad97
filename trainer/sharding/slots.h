#pragma once

#include <cstdint>

// Types that WeightSlots and GradientSlots share.
namespace distill::sharding {

// The model and the unit that a slot holds.
struct UnitKey {
  const void* model = nullptr;
  int64_t unit = -1;

  bool operator==(const UnitKey&) const = default;
};

// Blocks pass through one after the other; embedding and head (kLarge) are larger and stay longer.
enum class SlotSize {
  kBlock,
  kLarge
};

struct SlotPlan {
  int64_t block_bytes = 0; // size of the largest block's whole flat buffer
  int64_t block_slots = 2;
  int64_t prefetch = 1; // blocks that are gathered ahead of the one in use
  int64_t large_bytes = 0; // size of the largest embedding or head
  int64_t large_slots = 2;
};

} // namespace distill::sharding
