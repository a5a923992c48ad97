#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

namespace distill::models {

struct NormalArgs {
  void* out; // [count]
  int64_t count;
  int64_t first; // index, in the key's sequence, of the element that goes to out[0]
  uint64_t key;
  float scale; // standard deviation
  ElementType type; // of out
};

// out[i] = scale * element first + i of the key's sequence of normal values (normal_math.h), rounded.
const char* launch_normal(const NormalArgs& args, CUstream_st* stream);

} // namespace distill::models
