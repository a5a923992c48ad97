#pragma once

#include "losses/head/linear_head.h"

namespace distill::losses {

// Throws c10::Error naming the tensor, what was expected and what was found.
void check_linear_head(const LinearHeadInputs& inputs, const LossOptions& options, const LinearHeadGrads* grads);

// Throws (on CUDA a device-side assertion, without a synchronisation) for a target that is neither kIgnoreIndex nor in
// [0, vocab): it would be read as another token's, or past the row.
void assert_labels(const at::Tensor& targets_N, int64_t vocab);

// Columns that exist on both sides.
int64_t effective_vocab(const LinearHeadInputs& inputs);

// fp64 for fp64 inputs, else fp32.
at::ScalarType compute_type(at::ScalarType input);

} // namespace distill::losses
