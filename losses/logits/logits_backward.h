#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// The gradient of rows from the numbers that their forward pass saved (RowArgs::saved): one read of each side's logits,
// one write, no reduction. Of `args` everything but `metrics` and the biases is used; the gradient has the logits' type
// and may be the student's logits themselves; token_weights hold the incoming gradients. Queues it on `stream` (a
// cudaStream_t). Returns null, or an error message. no_cuda.cpp, in this folder, stands in for builds without CUDA.
const char* launch_logits_backward(const RowArgs& args, void* stream);

} // namespace distill::losses
