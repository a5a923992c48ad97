#pragma once

#include <ATen/core/Tensor.h>

namespace distill::models {

// Which elements of a matrix are left out. They follow from these numbers, the element's row and its column alone, so
// that a block that runs again, any number of ranks, any micro-batches and a resumed run leave out the same.
struct Dropout {
  double probability = 0; // in steps of 2^-32; 0: none are left out
  uint64_t seed = 0;
  int64_t step = 0; // below 2^40
  int64_t stream = 0; // of the matrix among those of a step, below 2^24
  int64_t first_row = 0; // of the matrix, among the rows of all ranks and micro-batches of the step
};

// x with the elements that are left out as zeros, and the others divided by 1 - probability. x_NI: contiguous, bf16,
// fp16, fp32 or fp64; N rows, I columns.
at::Tensor dropout(const at::Tensor& x_NI, const Dropout& dropout);

} // namespace distill::models
