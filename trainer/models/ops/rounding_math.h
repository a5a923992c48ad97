#pragma once

#include <cstring>

#include "trainer/models/ops/normal_math.h"

// Stochastic rounding to bf16, for the host and for kernels.
namespace distill::models {

constexpr int64_t kRoundingGroup = 4; // elements that share the random words of one call

// Random words for elements kRoundingGroup * group and the following ones of a unit, a word for each. They depend on
// the step, the unit, the position in the whole unit and `draw` alone, so that any number of ranks, any pieces and a
// resumed run round alike. `draw`: 0 for AdamW's moments; m + 1 for the gradient of a step's micro-batch m, below 2^20.
// `step`: below 2^24.
DISTILL_HOST_DEVICE_INLINE void rounding_words(
    uint64_t step, int64_t unit, int64_t draw, int64_t group, uint32_t words[kRoundingGroup]) {
  const uint64_t key = static_cast<uint64_t>(unit) << 44 ^ static_cast<uint64_t>(draw) << 24 ^ step;
  philox(key, static_cast<uint64_t>(group), words);
}

// Rounds a value to one of its two neighbours in bf16, up in magnitude with the probability of what truncation would
// lose, so that the expected value is the value. What is not finite stays what it is. Returns the bits of the bf16.
// `random`: 16 random bits.
DISTILL_HOST_DEVICE_INLINE uint16_t round_stochastically(float value, uint32_t random) {
  constexpr uint32_t kExponent = 0x7F800000U;
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  const bool finite = (bits & kExponent) != kExponent;
  const uint32_t nan = (bits & 0x7FFFFFU) != 0 ? 0x40U : 0U; // a NaN whose upper bits are 0 must not become infinite
  return static_cast<uint16_t>(finite ? (bits + random) >> 16 : (bits >> 16) | nan);
}

DISTILL_HOST_DEVICE_INLINE float widen(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
DISTILL_HOST_DEVICE_INLINE float widen(float value) {
  return value;
}

} // namespace distill::models
