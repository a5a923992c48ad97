#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"
#include "trainer/models/ops/rounding_math.h"

namespace distill::models {

struct RoundedSumArgs {
  uint16_t* sum; // [n], the bits of bf16
  const float* values; // [n]
  int64_t n;
  bool accumulate;
  uint64_t step; // of rounding_words(), as are the next two
  int64_t unit;
  int64_t draw;
  int64_t first; // position of sum[0], a multiple of kRoundingGroup
};

// The elements [kRoundingGroup * group, kRoundingGroup * (group + 1)).
DISTILL_HOST_DEVICE_INLINE void add_rounded_group(const RoundedSumArgs& args, int64_t group) {
  uint32_t words[kRoundingGroup];
  rounding_words(args.step, args.unit, args.draw, args.first / kRoundingGroup + group, words);
  for (int64_t j = 0; j < kRoundingGroup; ++j) {
    const int64_t i = group * kRoundingGroup + j;
    if (i < args.n) {
      const float value = args.accumulate ? widen(args.sum[i]) + args.values[i] : args.values[i];
      args.sum[i] = round_stochastically(value, words[j] & 0xFFFFU);
    }
  }
}

// Queues add_rounded() on a stream; returns null, or CUDA's error message.
const char* launch_rounded_sum(const RoundedSumArgs& args, CUstream_st* stream);

} // namespace distill::models
