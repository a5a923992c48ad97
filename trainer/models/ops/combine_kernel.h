#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// Adds up the rows of each token's visits to experts on CUDA, in the order of the visits. Sums are fp32 (fp64 for
// fp64), rounded once.
namespace distill::models {

struct CombineArgs {
  const void* rows; // [M, H] contiguous
  const int32_t* places; // [N, K] contiguous: rows of `rows`
  const void* residual; // [N, H] contiguous, added to the sums; null: none
  void* out; // [N, H] contiguous; may be the residual
  int64_t tokens; // N
  int64_t per_token; // K
  int64_t hidden; // H
  ElementType type;
};

const char* launch_combine(const CombineArgs& args, CUstream_st* stream);

} // namespace distill::models
