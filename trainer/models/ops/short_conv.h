#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/sequence.h"

// A depthwise causal convolution followed by SiLU: each channel of a token is a weighted sum of the same channel of the
// token and the W - 1 tokens before it. Tokens before the start of a token's segment count as zero. N tokens, C
// channels, W taps, of which the last one is the token's own (the layout of torch.nn.Conv1d). Arithmetic is fp32 (fp64
// for fp64). What a token gets, and its gradient, are the same bits whatever stands around its segment.
namespace distill::models {

// Rows of x may be strided. Weight: [C, 1, W]. The result is contiguous.
at::Tensor short_conv_forward(const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq);

// Writes the gradient of x into dx, whose rows may be strided, and adds to grad (fp32, or fp64 for fp64; undefined: it
// is not computed), over tokens in their order; `accumulate` false: grad is overwritten.
void short_conv_backward(
    const at::Tensor& dy_NC, const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq,
    at::Tensor& dx_NC, at::Tensor& grad_C1W, bool accumulate = true);

} // namespace distill::models
