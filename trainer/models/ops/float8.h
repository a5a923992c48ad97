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
// The gradient of that weight, dW = dy^T x, can be a float8 product too. N tokens, I inputs, O outputs; the weight's
// scales are w [O]. The product dy W has rounded dy already, as
//     q[n,o] * s[n] = dy[n,o] * w[o]
// with e4m3 q [N, O] and a scale for each token, s [N]. The same q serves:
//     dW[o,i] = 1 / w[o] * sum over n of q[n,o] * (s[n] * x[n,i])
//             = 1 / w[o] * c[i] * sum over n of q[n,o] * x'[n,i],   x'[n,i] = s[n] * x[n,i] / c[i] in e4m3
// with c[i] = max over n of |s[n] * x[n,i]| / 448, a scale for each input. So
// - dy is rounded once, and nothing reads it again in more than 8 bits; 1 / w[o] is exact, since w[o] is a power of
// two;
// - both operands have one scale for each row of what the tensor cores read, q^T [O, N] and x'^T [I, N] (on Hopper both
//   must have the inner size, the tokens, contiguous), and the scales are factors of the result;
// - s moves from q, which is summed over, to x. A token vanishes from the sum of an input i only where |s[n] * x[n,i]|
//   is below 2^-18.8 of the largest token's, and so adds about as little to it.
//
// On CUDA (compute capability 8.9 or newer) the products run on the tensor cores in 8 bits; that of a weight's
// gradient, whose result is fp32, needs 9.0 (blas_lt.h). Elsewhere they are computed in fp32 on the same rounded
// values, for tests.
namespace distill::models {

struct Float8Rows {
  at::Tensor values_RC; // float8_e4m3fn
  at::Tensor scale_R; // fp32
};

struct Float8Rounding {
  // Each scale is the smallest power of two that is not less than magnitude / 448, and at least kFloat8SmallestPower.
  bool power_of_two = false;
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

// Returns dy W in `dtype`: dy times the weight's scales, which has been rounded to float8 (Float8Rounding::factor_C),
// is multiplied by the same values of the weight that the forward pass used. Sizes and accumulation are those of
// float8_linear.
at::Tensor float8_linear_backward_input(const Float8Rows& dy_NO, const Float8Rows& weight_OI, at::ScalarType dtype);

// How a weight's gradient is added up on CUDA.
struct Float8Accumulation {
  bool accumulate = true; // false: the gradient's old values are not read
  // With the tensor cores' fast accumulation, which holds about 14 bits of the sum over all tokens. false: parts of the
  // sum are added in fp32.
  bool fast = false;
};

// Adds dy^T x to the gradient, by the formula above: `dy_NO` is what float8_linear_backward_input multiplies, `scale_O`
// the weight's scales, `x_NI` in bf16, fp16 or fp32. grad_OI: fp32, contiguous. On CUDA the numbers of inputs and
// outputs must be multiples of 16; that of tokens is any. NaN or infinity in dy or x are in the result, too, as NaN or
// infinity in all elements that they reach. `counts`: of rounding x'^T, whose rows are the inputs; may be undefined.
void float8_linear_backward_weight(
    const Float8Rows& dy_NO, const at::Tensor& scale_O, const at::Tensor& x_NI, at::Tensor& grad_OI,
    const Float8Accumulation& accumulation = {}, const at::Tensor& counts = {});

// The sum over tokens is over a multiple of this many: the operands' other tokens are zeros. Rows of operands need a
// multiple of 16 bytes; 64 are two steps of the tensor cores, and cost nothing more.
inline constexpr int64_t kFloat8Tokens = 64;

// Returns x'^T and c: the columns of s * x, each rounded as a row. Rows whose s is kFloat8SmallestScale, of a dy of
// zeros, are zeros. x_NI: bf16, fp16 or fp32, a multiple of 8 columns on
// CUDA; s_N: fp32. The values [I, tokens] have zeros after the N-th column; tokens >= N is a multiple of kFloat8Tokens.
Float8Rows float8_scaled_columns(
    const at::Tensor& x_NI, const at::Tensor& s_N, int64_t tokens, const at::Tensor& counts = {});

// Returns the transposed matrix [C, columns], contiguous, with zeros after the R-th column. bytes_RC: float8_e4m3fn,
// contiguous, with C and `columns` >= R multiples of 4. `columns` 0: R.
at::Tensor float8_transpose(const at::Tensor& values_RC, int64_t columns = 0);

} // namespace distill::models
