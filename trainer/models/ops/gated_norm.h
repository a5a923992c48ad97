#pragma once

#include <ATen/core/Tensor.h>

// RMSNorm of each head, times the SiLU of a gate: y = x / sqrt(mean(x^2) + eps) * weight * silu(z). N tokens, A heads,
// D elements of a head, V = A * D. Arithmetic is fp32 (fp64 for fp64), and only results are rounded.
namespace distill::models {

// x [N, V] contiguous; rows of z [N, V] may be strided; weight [D].
at::Tensor gated_norm_forward(const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps);

// Returns dx, writes dz, whose rows may be strided, and adds to grad [D] (fp32, or fp64 for fp64; undefined: it is not
// computed), with the same bits in every run.
at::Tensor gated_norm_backward(
    const at::Tensor& dy_NV, const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps,
    at::Tensor& dz_NV, at::Tensor& grad_D);

} // namespace distill::models
