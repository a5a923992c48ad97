#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace distill::optim {

// fp64 [1]: the sum of the squares of all elements of fp32 or bf16 tensors (contiguous, one device). Squares are exact
// and summed in fp64, so the result is exact to fp64 rounding at any size. The same bits for any number of threads.
at::Tensor square_sum(const std::vector<at::Tensor>& tensors);

} // namespace distill::optim
