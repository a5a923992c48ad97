#pragma once

#include <ATen/core/Tensor.h>

// Matrix products of the loss head and of the models' linear layers.
namespace distill::losses {

// out_MN = alpha * a_MK b_KN + beta * added_MN. Rows of `out` and `added` are contiguous, `a` and `b` lie by rows or by
// columns; strides may be larger than the rows. `added` may be `out` itself, or undefined: then only the product is
// written and what `out` held is never read. `out` has the operands' dtype or, on CUDA, fp32 for bf16 operands.
//
// On CUDA large products of bf16 matrices run with the cublasLt kernel that was fastest when it was measured, which need
// not be cuBLAS's own first choice (docs/performance.md). The first calls of a shape try each candidate in turn and are
// timed by events, without waiting for the device. Candidates are tilings of one algorithm that sum over all of K in
// one pass, so that all give the same bits; where cuBLAS would split the sum, and for everything else, ATen's product
// runs. In deterministic mode (at::globalContext) and while a CUDA graph is captured nothing is timed.
void matrix_product_out(
    const at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, double alpha = 1,
    const at::Tensor& added_MN = {}, double beta = 1);

// The same into a new tensor of the operands' dtype.
at::Tensor matrix_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& added_MN = {});

} // namespace distill::losses
