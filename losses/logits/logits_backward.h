#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Queues a kernel that computes the gradient of rows from what their forward pass saved (RowArgs::saved). It reads each
// side's logits once and reduces nothing. It uses all of `args` but `metrics` and the biases; token_weights hold the
// incoming gradients. The gradient has the logits' type and may be the student's logits themselves. `stream`: a
// cudaStream_t. Returns null, or an error message. no_cuda.cpp, in this folder, stands in for builds without CUDA.
const char* launch_logits_backward(const RowArgs& args, void* stream);

} // namespace distill::losses
