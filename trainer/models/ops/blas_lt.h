#pragma once

#include <ATen/core/Tensor.h>

namespace distill::models {

// A matrix [R, C], contiguous, and the scales of its rows [R] (fp32) where it is float8_e4m3fn.
struct BlasLtOperand {
  at::Tensor values;
  at::Tensor scale; // undefined: bf16 or fp16
};

// Tells whether cuBLASLt multiplies float8 matrices with a scale for each row. It does on GPUs of compute capability
// 9.0 (Hopper).
bool blas_lt_scales_rows(at::Device device);

// out = x W^T + residual on the current stream. Float8 operands are accumulated with the tensor cores' fast
// accumulation, and need blas_lt_scales_rows. `residual` and `out`: two contiguous tensors, bf16, or fp16 as x.
void blas_lt_product_add(
    const BlasLtOperand& x, const BlasLtOperand& weight, const at::Tensor& residual, at::Tensor& out);

// out = x W^T, or out += x W^T, of float8 operands, which need blas_lt_scales_rows. `out`: contiguous, fp32.
// `fast_accumulation`: the tensor cores' own sums, of about 14 bits; false: parts of them are added in fp32.
void blas_lt_float8_product(
    const BlasLtOperand& x, const BlasLtOperand& weight, at::Tensor& out, bool accumulate, bool fast_accumulation);

} // namespace distill::models
