#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

namespace distill::models {

struct EmbeddingBackwardArgs {
  const int64_t* sorted; // [N] token ids in ascending order
  const int64_t* order; // [N] position of each in dx
  const void* dx; // [N, H] contiguous
  void* grad; // [V, H] fp32 (fp64 for fp64), added to
  int64_t grad_stride; // elements from row to row
  int64_t tokens; // N
  int64_t hidden; // H
  int64_t vocab; // V; a token id outside [0, V) stops the kernel with a trap
  double scale; // rows are multiplied by it
  ElementType type; // of dx
};

// grad[token] += scale * sum of the token's rows, in the order of `order`, without atomics.
const char* launch_embedding_backward(const EmbeddingBackwardArgs& args, CUstream_st* stream);

} // namespace distill::models
