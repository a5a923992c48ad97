#pragma once

#include <ATen/core/Tensor.h>

// The head's matrix products. Products of bf16 matrices accumulate in fp32. On CUDA the product itself writes fp32; the
// CPU has no such product, so the operands are converted block by block of the vocabulary.
// Shapes: R tokens, V vocabulary, H hidden. `kernels`: the device type whose kernels run (losses/meta_device.h); on
// meta tensors a product only allocates what that device's product allocates.
namespace distill::losses {

// logits_RV = hidden_RH weight_VH^T. logits: fp32 or the hidden dtype, rows may be padded.
void logits_product(
    c10::DeviceType kernels, at::Tensor logits_RV, const at::Tensor& hidden_RH, const at::Tensor& weight_VH);

// out_RH = scale * gradient_RV weight_VH.
void hidden_gradient_product(
    c10::DeviceType kernels, at::Tensor out_RH, const at::Tensor& gradient_RV, const at::Tensor& weight_VH,
    double scale);

// sum_VH = scale * gradient_RV^T hidden_RH, added to the old sum_VH where it `accumulates`; otherwise the old sum_VH is
// never read. sum: fp32, or fp64 for fp64 operands.
void weight_gradient_product(
    c10::DeviceType kernels, at::Tensor sum_VH, const at::Tensor& gradient_RV, const at::Tensor& hidden_RH,
    double scale, bool accumulates);

// sum_V = the sum of gradient_RV over its rows. sum: fp32, or fp64 for fp64 operands.
void bias_gradient_sum(c10::DeviceType kernels, at::Tensor sum_V, const at::Tensor& gradient_RV);

// The matrix itself where a product can read it without a copy (its rows or its columns are contiguous). Otherwise a
// contiguous copy, so that the matrix is copied once and not by every product.
at::Tensor readable_by_products(const at::Tensor& matrix);

// Bytes that the conversions above allocate for operands of this dtype: a fixed part and a part for each token.
struct ConversionBytes {
  int64_t fixed = 0;
  int64_t per_row = 0;
};
ConversionBytes conversion_bytes(at::DeviceType device, at::ScalarType dtype, int64_t hidden);

} // namespace distill::losses
