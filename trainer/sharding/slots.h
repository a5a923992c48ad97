#pragma once

#include <cstdint>

// What the slots of gathered weights and of whole gradients share.
namespace distill::sharding {

// Which unit of which model a slot holds.
struct UnitKey {
  const void* model = nullptr;
  int64_t unit = -1;

  bool operator==(const UnitKey&) const = default;
};

// Blocks come and go one after the other; embedding and head are large and stay for longer.
enum class SlotSize {
  kBlock,
  kLarge
};

struct SlotPlan {
  int64_t block_bytes = 0; // of the largest block's whole flat buffer
  int64_t block_slots = 2;
  int64_t large_bytes = 0; // of the largest embedding or head
  int64_t large_slots = 2;
};

} // namespace distill::sharding
