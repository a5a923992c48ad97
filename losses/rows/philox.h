#pragma once

#include <cstdint>

#include "losses/rows/row_functions.h"

// Philox4x32-10, a counter-based random number generator for host and device (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", 2011): the numbers of a counter do not depend on what was drawn before.
namespace distill::losses {

struct PhiloxBlock {
  uint32_t words[4];
};

DISTILL_ROW_INLINE PhiloxBlock philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * counter.words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * counter.words[2];
    counter = {
        {static_cast<uint32_t>(product1 >> 32U) ^ counter.words[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32U) ^ counter.words[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// Returns number `draw` of the token `key` under `seed`: uniform on [0, 1), a multiple of 2^-53.
DISTILL_ROW_INLINE double philox_uniform(uint64_t seed, uint64_t key, uint32_t draw) {
  const PhiloxBlock counter{{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32U), draw / 2, 0}};
  const PhiloxBlock block = philox(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32U));
  const uint32_t high = block.words[draw % 2 * 2] >> 5U;
  const uint32_t low = block.words[draw % 2 * 2 + 1] >> 6U;
  return (static_cast<double>(high) * 67108864.0 + static_cast<double>(low)) * 0x1p-53;
}

} // namespace distill::losses
