#include "losses/head/products.h"

#include <ATen/Functions.h>

#include "losses/products/fp32_product.h"

namespace distill::losses {

namespace {

// On the CPU, this many vocabulary rows are converted from bf16 to fp32 at a time.
constexpr int64_t kVocabularyBlock = 4096;

// Calls body(begin, count) for blocks of the vocabulary.
template <typename Body>
void for_vocabulary_blocks(int64_t vocab, const Body& body) {
  for (int64_t begin = 0; begin < vocab; begin += kVocabularyBlock) {
    body(begin, std::min(kVocabularyBlock, vocab - begin));
  }
}

// Products on CUDA write into the caller's tensors and allocate nothing.
bool only_plans_for_cuda(c10::DeviceType kernels, const at::Tensor& operand) {
  return operand.is_meta() && kernels == at::kCUDA;
}

} // namespace

void logits_product(
    c10::DeviceType kernels, at::Tensor logits_RV, const at::Tensor& hidden_RH, const at::Tensor& weight_VH) {
  if (only_plans_for_cuda(kernels, hidden_RH)) {
    return;
  }
  if (kernels == at::kCPU && hidden_RH.scalar_type() == at::kBFloat16) {
    const at::Tensor hidden = hidden_RH.to(at::kFloat);
    for_vocabulary_blocks(weight_VH.size(0), [&](int64_t begin, int64_t count) {
      logits_RV.narrow(1, begin, count).copy_(at::mm(hidden, weight_VH.narrow(0, begin, count).to(at::kFloat).t()));
    });
  } else if (logits_RV.scalar_type() == hidden_RH.scalar_type()) {
    at::mm_out(logits_RV, hidden_RH, weight_VH.t());
  } else {
    fp32_product(logits_RV, hidden_RH, weight_VH.t(), /*scale=*/1, /*accumulates=*/false);
  }
}

void hidden_gradient_product(
    c10::DeviceType kernels, at::Tensor out_RH, const at::Tensor& gradient_RV, const at::Tensor& weight_VH,
    double scale, bool accumulates) {
  if (only_plans_for_cuda(kernels, gradient_RV)) {
    return;
  }
  if (kernels == at::kCUDA || gradient_RV.scalar_type() != at::kBFloat16) {
    at::addmm_out(out_RH, out_RH, gradient_RV, weight_VH, /*beta=*/accumulates ? 1 : 0, /*alpha=*/scale);
    return;
  }
  at::Tensor sum = accumulates ? out_RH.to(at::kFloat) : at::zeros(out_RH.sizes(), out_RH.options().dtype(at::kFloat));
  for_vocabulary_blocks(weight_VH.size(0), [&](int64_t begin, int64_t count) {
    sum.addmm_(
        gradient_RV.narrow(1, begin, count).to(at::kFloat), weight_VH.narrow(0, begin, count).to(at::kFloat),
        /*beta=*/1,
        /*alpha=*/scale);
  });
  out_RH.copy_(sum);
}

void weight_gradient_product(
    c10::DeviceType kernels, at::Tensor sum_VH, const at::Tensor& gradient_RV, const at::Tensor& hidden_RH,
    double scale, bool accumulates) {
  if (only_plans_for_cuda(kernels, gradient_RV)) {
    return;
  }
  const double beta = accumulates ? 1 : 0;
  if (sum_VH.scalar_type() == gradient_RV.scalar_type()) {
    sum_VH.addmm_(gradient_RV.t(), hidden_RH, beta, /*alpha=*/scale);
  } else if (kernels == at::kCPU) {
    const at::Tensor hidden = hidden_RH.to(sum_VH.scalar_type());
    for_vocabulary_blocks(sum_VH.size(0), [&](int64_t begin, int64_t count) {
      const at::Tensor gradient = gradient_RV.narrow(1, begin, count).to(sum_VH.scalar_type());
      sum_VH.narrow(0, begin, count).addmm_(gradient.t(), hidden, beta, /*alpha=*/scale);
    });
  } else {
    fp32_product(sum_VH, gradient_RV.t(), hidden_RH, scale, accumulates);
  }
}

void bias_gradient_sum(c10::DeviceType kernels, at::Tensor sum_V, const at::Tensor& gradient_RV) {
  if (kernels == at::kCUDA || sum_V.scalar_type() == gradient_RV.scalar_type()) {
    at::sum_out(sum_V, gradient_RV, 0, /*keepdim=*/false, sum_V.scalar_type());
    return;
  }
  for_vocabulary_blocks(sum_V.size(0), [&](int64_t begin, int64_t count) {
    at::Tensor block = sum_V.narrow(0, begin, count);
    at::sum_out(block, gradient_RV.narrow(1, begin, count).to(sum_V.scalar_type()), 0);
  });
}

at::Tensor readable_by_products(const at::Tensor& matrix) {
  const bool rows = matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1);
  const bool columns = matrix.stride(0) == 1 && matrix.stride(1) >= matrix.size(0);
  return rows || columns ? matrix : matrix.contiguous();
}

ConversionBytes conversion_bytes(at::DeviceType device, at::ScalarType dtype, int64_t hidden) {
  if (device != at::kCPU || dtype != at::kBFloat16) {
    return {};
  }
  constexpr int64_t kFloatBytes = 4;
  return {.fixed = kFloatBytes * kVocabularyBlock * hidden, .per_row = kFloatBytes * (kVocabularyBlock + 2 * hidden)};
}

} // namespace distill::losses
