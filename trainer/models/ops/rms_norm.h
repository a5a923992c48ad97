#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/float8.h"

// RMSNorm over the last dimension: y = x / sqrt(mean(x^2) + eps) * (weight + offset). The statistics are fp32 (fp64 for
// fp64), and so is the sum with the offset.
namespace distill::models {

struct RmsNormResult {
  at::Tensor y_NH;
  at::Tensor rstd_N; // 1 / sqrt(mean(x^2) + eps)
};

// Rows of x may be strided.
RmsNormResult rms_norm_forward(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps, double offset = 0);

// Normalises x + residual, and writes that sum into x_NH; one pass on CUDA.
RmsNormResult add_rms_norm_forward_(
    at::Tensor& x_NH, const at::Tensor& residual_NH, const at::Tensor& weight_H, double eps, double offset = 0);

// The results of these two ops with y rounded to its own dtype and then by float8_rows: bit for bit those of the ops
// one after the other, in one pass on CUDA.
struct Float8RmsNormResult {
  Float8Rows y_NH;
  at::Tensor rstd_N;
};
Float8RmsNormResult rms_norm_forward_float8(
    const at::Tensor& x_NH, const at::Tensor& weight_H, double eps, double offset = 0);
Float8RmsNormResult add_rms_norm_forward_float8_(
    at::Tensor& x_NH, const at::Tensor& residual_NH, const at::Tensor& weight_H, double eps, double offset = 0);

// Recomputes y, bit for bit, from the saved input and rstd.
at::Tensor rms_norm_apply(
    const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H, double offset = 0);

// Returns dx, plus `dresidual_NH` where it is defined (x usually goes on as the residual as well). Adds to grad_H
// (fp32, or fp64 in an fp64 model) unless it is undefined; on CUDA the same bits in every run on one kind of GPU.
at::Tensor rms_norm_backward(
    const at::Tensor& dy_NH, const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    at::Tensor& grad_H, const at::Tensor& dresidual_NH = {}, double offset = 0);

// Backward pass of the norm over each head of [N, heads, D] views with contiguous D, or over all heads of a token where
// the weight has heads * D elements: dy becomes dx in place. rstd [N * heads], or [N].
void head_rms_norm_backward_(
    at::Tensor& dy_NAD, const at::Tensor& x_NAD, const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& grad,
    double offset = 0);

} // namespace distill::models
