#pragma once

#include <ATen/core/Tensor.h>

// The head's matrix products. Products of bf16 matrices accumulate in fp32; on CUDA the product itself writes fp32, on
// CPU (which has no such product) the operands are converted block by block of the vocabulary.
// Shapes: R rows (tokens), V vocabulary, H hidden.
namespace distill::losses {

// logits_RV = hidden_RH weight_VH^T. logits: fp32 or the hidden dtype, rows may be padded.
void logits_product(at::Tensor logits_RV, const at::Tensor& hidden_RH, const at::Tensor& weight_VH);

// out_RH = scale * gradient_RV weight_VH.
void hidden_gradient_product(
    at::Tensor out_RH, const at::Tensor& gradient_RV, const at::Tensor& weight_VH, double scale);

// sum_VH = scale * gradient_RV^T hidden_RH, added to what sum_VH holds where it `accumulates`; otherwise what it holds
// is never read. sum: fp32, or fp64 for fp64 operands.
void weight_gradient_product(
    at::Tensor sum_VH, const at::Tensor& gradient_RV, const at::Tensor& hidden_RH, double scale, bool accumulates);

// sum_V = the sum of gradient_RV over its rows. sum: fp32, or fp64 for fp64 operands.
void bias_gradient_sum(at::Tensor sum_V, const at::Tensor& gradient_RV);

// The tensor itself where a matrix product can read it as it lies (rows or columns are contiguous), else a contiguous
// copy, so that it is copied once and not by every product.
at::Tensor readable_by_products(const at::Tensor& matrix);

// What the conversions above allocate for operands of this dtype: a fixed part and a part for each row.
struct ConversionBytes {
  int64_t fixed = 0;
  int64_t per_row = 0;
};
ConversionBytes conversion_bytes(at::DeviceType device, at::ScalarType dtype, int64_t hidden);

} // namespace distill::losses
