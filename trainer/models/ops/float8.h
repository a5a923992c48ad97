#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/float8_count.h"

// Matrix products in 8-bit floating point. A matrix is stored as e4m3 values (4 exponent bits, 3 of mantissa, largest
// value 448) with one fp32 scale for each row: element = value * scale. The scale is the row's largest magnitude / 448,
// so that nothing overflows. In a product x W^T a row of x is a token and a row of W is an output, so that both scales
// are factors of the result.
//
// rms_norm.h and glu.h have ops that give their result in this form, in one pass on CUDA.
//
// A weight that is trained has scales that are powers of two. The same values then serve both of its products: x W^T,
// and dy W, whose operand is dy times the weight's scales, which changes no mantissa.
//
// On CUDA (compute capability 8.9 or newer) the products run on the tensor cores in 8 bits. Elsewhere they are computed
// in fp32 on the same rounded values, for tests.
namespace distill::models {

struct Float8Rows {
  at::Tensor values_RC; // float8_e4m3fn
  at::Tensor scale_R; // fp32
};

struct Float8Rounding {
  bool power_of_two = false; // each scale is the smallest power of two that is not less than magnitude / 448
  at::Tensor factor_C; // fp32, powers of two: x * factor is rounded; undefined: x
  at::Tensor counts; // float8_count.h; added to. Undefined: not counted
};

// Rounds each row to nearest even. x_RC: bf16, fp16, fp32 or fp64. A row of zeros has a tiny scale.
Float8Rows float8_rows(const at::Tensor& x_RC, const Float8Rounding& rounding = {});
// Rounds each row into existing tensors, contiguous.
void float8_rows_out(const at::Tensor& x_RC, const Float8Rows& out, const Float8Rounding& rounding = {});
// Allocates rows without initialising them. `options`: the device.
Float8Rows empty_float8_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

// Returns the values as numbers, fp32.
at::Tensor float8_to_float(const Float8Rows& rows);

// Returns x W^T (+ bias), accumulated in fp32 (on CUDA with the tensor cores' fast accumulation, whose error is about a
// tenth of the rounding error of e4m3: docs/float8.md), in `dtype`. On CUDA the inner size and the number of outputs
// must be multiples of 16.
at::Tensor float8_linear(
    const Float8Rows& x_NI, const Float8Rows& weight_OI, at::ScalarType dtype, const at::Tensor& bias_O = {});

// Returns dy W, in dy's dtype: dy times the weight's scales is rounded to float8, and multiplied by the same values of
// the weight that the forward pass used. Sizes and accumulation are those of float8_linear. `counts`: of rounding dy;
// may be undefined.
at::Tensor float8_linear_backward_input(
    const at::Tensor& dy_NO, const Float8Rows& weight_OI, const at::Tensor& counts = {});

// Returns the transposed matrix, contiguous. bytes_RC: float8_e4m3fn, contiguous, sizes that are multiples of 4.
at::Tensor float8_transpose(const at::Tensor& values_RC);

} // namespace distill::models
