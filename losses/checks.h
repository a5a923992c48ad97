#pragma once

#include <ATen/core/Tensor.h>

namespace distill::losses {

// Throws (on CUDA a device-side assertion, without a synchronisation) for a target that is neither kIgnoreIndex nor in
// [0, vocab): it would be read as another token's, or past the row.
void assert_labels(const at::Tensor& targets_N, int64_t vocab);

// Returns the type of sums and metrics: fp64 for fp64 inputs, otherwise fp32.
at::ScalarType compute_type(at::ScalarType input);

} // namespace distill::losses
