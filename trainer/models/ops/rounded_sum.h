#pragma once

#include <ATen/core/Tensor.h>

namespace distill::models {

// Which random numbers a sum is rounded with (rounding_math.h).
struct RoundingKey {
  int64_t step = 0;
  int64_t unit = 0;
  int64_t draw = 0;
  int64_t first = 0; // position of the first element in the whole unit, a multiple of kRoundingGroup
};

// sum = values, or with `accumulate` sum + values, computed in fp32 and rounded stochastically. sum: bf16 [n]; values:
// fp32 [n]; contiguous, on the same device.
void add_rounded(at::Tensor sum, const at::Tensor& values, bool accumulate, const RoundingKey& key);

} // namespace distill::models
