#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"
#include "trainer/models/ops/normal_math.h"

namespace distill::models {

struct DropoutArgs {
  const void* x; // [n]
  void* out; // [n]
  int64_t n;
  int64_t first; // position of x[0] among the elements of all ranks and micro-batches
  uint64_t key; // of philox()
  uint32_t limit; // an element is left out where its random word is smaller
  double scale; // of the others
  ElementType type;
};

constexpr int64_t kDropoutGroup = 4; // elements that share the random words of one call

// Whether each of the elements kDropoutGroup * group and the following ones stays.
DISTILL_HOST_DEVICE_INLINE void dropout_group(const DropoutArgs& args, int64_t group, bool stays[kDropoutGroup]) {
  uint32_t words[kDropoutGroup];
  philox(args.key, static_cast<uint64_t>(group), words);
  for (int64_t j = 0; j < kDropoutGroup; ++j) {
    stays[j] = words[j] >= args.limit;
  }
}

// Queues dropout() on a stream; returns null, or CUDA's error message.
const char* launch_dropout(const DropoutArgs& args, CUstream_st* stream);

} // namespace distill::models
