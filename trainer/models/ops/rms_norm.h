#pragma once

#include <ATen/core/Tensor.h>

// RMSNorm over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight. The statistics are fp32 (fp64 for fp64).
namespace distill::models {

struct RmsNormResult {
  at::Tensor y_NH;
  at::Tensor rstd_N; // 1 / sqrt(mean(x^2) + eps)
};

RmsNormResult rms_norm_forward(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps);

// y again, bit for bit, from the kept input and rstd (CUDA's one kernel makes rstd anew, which is why eps is asked
// for).
at::Tensor rms_norm_apply(const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H, double eps);

// Returns dx, plus `dresidual_NH` where it is defined (x usually goes on as the residual as well). Adds to grad_H
// (fp32, or fp64 in an fp64 model) unless it is undefined.
at::Tensor rms_norm_backward(
    const at::Tensor& dy_NH, const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    at::Tensor& grad_H, const at::Tensor& dresidual_NH = {});

} // namespace distill::models
