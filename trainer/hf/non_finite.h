#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace distill::hf {

// Values that are NaN or infinite.
struct NonFinite {
  int64_t count = 0;
  int64_t first = -1; // index of the first one; -1: none
};

// Adds those of a contiguous CPU tensor of a floating-point type, whose first element has the given index. To be called
// on values that are still in a cache: it reads them once.
void add_non_finite(const at::Tensor& values, int64_t first_index, NonFinite& found);

} // namespace distill::hf
