#pragma once

#include <ATen/core/Tensor.h>

// Matrix products of a linear layer. N tokens, I inputs, O outputs; weights have Hugging Face's layout, [O, I].
namespace distill::models {

// x W^T (+ bias). `bias_O` may be undefined.
at::Tensor linear_forward(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O = {});

// x W^T in fp32 (fp64 for fp64), without rounding to the operands' dtype.
at::Tensor linear_forward_fp32(const at::Tensor& x_NI, const at::Tensor& weight_OI);

// dy W.
at::Tensor linear_backward_input(const at::Tensor& dy_NO, const at::Tensor& weight_OI);

// grad += dy^T x, accumulated in the gradient's dtype (fp32, or the inputs' own); `accumulate` false: grad = dy^T x,
// and the gradient's old values are not read. On CUDA one product that writes fp32 straight into the gradient;
// elsewhere low-precision inputs are converted first. An undefined gradient is skipped.
void linear_backward_weight(
    const at::Tensor& dy_NO, const at::Tensor& x_NI, at::Tensor& grad_OI, bool accumulate = true);

// grad += sum of dy over tokens. An undefined gradient is skipped.
void linear_backward_bias(const at::Tensor& dy_NO, at::Tensor& grad_O);

} // namespace distill::models
