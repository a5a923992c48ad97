#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/float8.h"

// Matrix products that add what another tensor holds: out = x W^T + residual, with one rounding at the end. On CUDA one
// product of cuBLASLt, which reads the residual and writes to a different place; at::addmm copies the residual first.
// In float8 that is so where cuBLASLt has scales for rows (blas_lt_scales_rows); on other GPUs an addition of its own
// follows the product, which is then rounded twice.
namespace distill::models {

// Multiplies x and a weight of one dtype, bf16 or fp16 on CUDA. `out`: [N, O] of that dtype, not the residual
// itself: written in place, the sum has other bits.
void product_add_out(
    const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& residual_NO, at::Tensor& out_NO);

// Multiplies in float8, accumulated as float8_linear does. The residual and `out` have one dtype, bf16 on CUDA.
void product_add_out(
    const Float8Rows& x_NI, const Float8Rows& weight_OI, const at::Tensor& residual_NO, at::Tensor& out_NO);

} // namespace distill::models
