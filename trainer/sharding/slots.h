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

// Blocks pass through one after the other, and so do the adapters of blocks, beside them; embedding and head (kLarge)
// are larger and stay longer.
enum class SlotSize {
  kBlock,
  kAdapter,
  kLarge
};

struct SlotPlan {
  int64_t block_bytes = 0; // size of the largest block's whole flat buffer
  int64_t block_slots = 2; // of adapters there are as many
  int64_t adapter_bytes = 0; // of a block's adapters; 0: there are none
  int64_t prefetch = 1; // blocks that are gathered ahead of the one in use
  int64_t large_bytes = 0; // size of the largest embedding or head
  int64_t large_slots = 2;
};

} // namespace distill::sharding
