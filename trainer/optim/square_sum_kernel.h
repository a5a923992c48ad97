#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

namespace distill::optim {

// The first stage of a sum of squares: each block of threads writes the sum of its part.
struct SquareSumArgs {
  const void* values; // [count], fp32 or bf16
  bool bf16;
  double* partials; // [kSquareSumParts], all written
  int64_t count;
};

inline constexpr int64_t kSquareSumParts = 528; // four blocks for each of an H200's 132 multiprocessors

// Every thread adds squares in fp64, in an order that depends on `count` alone: the same bits in every run.
const char* launch_square_sum(const SquareSumArgs& args, CUstream_st* stream);

} // namespace distill::optim
