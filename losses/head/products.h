#pragma once

#include <ATen/core/Tensor.h>

// The head's products of bf16 matrices accumulate in fp32. On CUDA the product itself writes fp32; the CPU has no
// such product, so that operands are converted block by block of the vocabulary.
// Shapes: R tokens, V vocabulary, H hidden. `kernels`: the device type whose kernels run (losses/meta_device.h); on
// meta tensors a product only allocates what that device's product allocates.
namespace distill::losses {

// Computes logits_RV = hidden_RH weight_VH^T. logits: fp32 or the hidden dtype, rows may be padded.
void logits_product(
    c10::DeviceType kernels, at::Tensor logits_RV, const at::Tensor& hidden_RH, const at::Tensor& weight_VH);

// Computes out_RH = scale * gradient_RV weight_VH, plus the old out_RH where it `accumulates`.
void hidden_gradient_product(
    c10::DeviceType kernels, at::Tensor out_RH, const at::Tensor& gradient_RV, const at::Tensor& weight_VH,
    double scale, bool accumulates);

// Computes sum_VH = scale * gradient_RV^T hidden_RH, plus the old sum_VH where it `accumulates`, which otherwise
// is never read. sum: fp32, or fp64 for fp64 operands.
void weight_gradient_product(
    c10::DeviceType kernels, at::Tensor sum_VH, const at::Tensor& gradient_RV, const at::Tensor& hidden_RH,
    double scale, bool accumulates);

// Computes sum_V, the sum of gradient_RV over its rows. sum: fp32, or fp64 for fp64 operands.
void bias_gradient_sum(c10::DeviceType kernels, at::Tensor sum_V, const at::Tensor& gradient_RV);

// Returns the matrix itself where a product can read it (its rows or its columns are contiguous), and otherwise a
// contiguous copy, so that the matrix is copied once and not by every product.
at::Tensor readable_by_products(const at::Tensor& matrix);

// The conversions above allocate these bytes for operands of one dtype: a fixed part and a part for each token.
struct ConversionBytes {
  int64_t fixed = 0;
  int64_t per_row = 0;
};
ConversionBytes conversion_bytes(at::DeviceType device, at::ScalarType dtype, int64_t hidden);

} // namespace distill::losses
