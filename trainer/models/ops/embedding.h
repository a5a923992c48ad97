#pragma once

#include <ATen/core/Tensor.h>

namespace distill::models {

// Rows of weight_VH for each token, times `scale`, which is rounded to the weight's dtype first (as transformers'
// Gemma3TextScaledWordEmbedding does). Token ids outside [0, V) are an error (on CUDA a device assertion).
at::Tensor embedding_forward(const at::Tensor& tokens_N, const at::Tensor& weight_VH, double scale = 1);

// grad[token] += scale * dx for every token, in the gradient's dtype (fp32, or fp64 in an fp64 model). Tokens are
// sorted and each row is summed in order, without atomics: the result does not depend on the number of threads. An
// undefined gradient is skipped.
void embedding_backward(const at::Tensor& tokens_N, const at::Tensor& dx_NH, at::Tensor& grad_VH, double scale = 1);

} // namespace distill::models
