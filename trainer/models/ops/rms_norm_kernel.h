#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// RMSNorm on CUDA: one pass over memory each way. N rows of H elements of `type`; statistics and arithmetic are fp32
// (fp64 for fp64). 16-byte accesses where H, pointers and strides allow, element by element otherwise.
namespace distill::models {

struct RmsNormArgs {
  const void* x; // [N, H]; rows are x_stride elements apart
  const void* residual; // [N, H] or null: sum = x + residual is written and normalised
  const void* weight; // [H]
  void* sum; // [N, H], with residual only; may be x
  void* y; // [N, H] of `type`; e4m3 with float8_scale
  void* rstd; // [N] fp32 (fp64 for fp64): written by forward, read by apply
  float* float8_scale; // [N] or null: y is rounded to `type` and then to e4m3, forward only (float8.h)
  int64_t rows; // N
  int64_t hidden; // H
  int64_t x_stride; // H with a residual
  double eps;
  double offset; // added to the weight
  ElementType type;
};

// y = x / sqrt(mean(x^2) + eps) * (weight + offset), and rstd.
const char* launch_rms_norm_forward(const RmsNormArgs& args, CUstream_st* stream);

// y = x * rstd * (weight + offset): bit for bit the forward pass's y. Takes no residual.
const char* launch_rms_norm_apply(const RmsNormArgs& args, CUstream_st* stream);

// Row n lies at element (n / inner) * outer_stride + (n % inner) * inner_stride: rows of a matrix (inner 1), or heads
// within tokens.
struct RowStrides {
  int64_t outer;
  int64_t inner;
};

struct RmsNormBackwardArgs {
  const void* dy; // [N, H]
  const void* x; // [N, H]
  const void* dresidual; // [N, H] contiguous, or null: added to dx
  const void* weight; // [H]
  const void* rstd; // [N] fp32 (fp64 for fp64)
  void* dx; // [N, H]; may be dy
  void* grad; // [H] fp32 (fp64 for fp64), added to; null: not computed
  void* partials; // [rms_norm_backward_blocks, H] of grad's type, with grad only: workspace, needs no initial value
  int64_t rows; // N
  int64_t hidden; // H
  int64_t inner; // rows per outer index; 1 for a matrix
  RowStrides dy_strides;
  RowStrides x_strides;
  RowStrides dx_strides;
  double offset; // added to the weight
  ElementType type;
};

// Rows of the workspace, on the current device.
int64_t rms_norm_backward_blocks(const RmsNormBackwardArgs& args);

// dx, and grad += sum over rows of dy * x * rstd. Each block sums its rows, a second kernel sums the blocks in order:
// no atomics, the same bits in every run on one kind of GPU.
const char* launch_rms_norm_backward(const RmsNormBackwardArgs& args, CUstream_st* stream);

} // namespace distill::models
