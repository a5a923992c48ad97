// Measures attention at the shapes of Gemma's layers, 8192 tokens in bf16: through fused kernels, and through matrix
// products, which heads of more than 256 and capped scores take.
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "tests/trainer/models/gpu_time.h"
#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/attention.h"

namespace distill::models {
namespace {

constexpr int64_t kTokens = 8192;

struct Shape {
  const char* name;
  AttentionSpec spec;
  int64_t document; // tokens of each
};

// The operations of the tokens that a token sees, as the plan counts them: two products forward, five backward.
void report(const Shape& shape) {
  const AttentionSpec& spec = shape.spec;
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const at::Tensor q = at::randn({kTokens, spec.heads, spec.head_dim}, bf16);
  const at::Tensor k = at::randn({kTokens, spec.kv_heads, spec.head_dim}, bf16), v = at::randn_like(k);
  const at::Tensor dout = at::randn({kTokens, spec.query_width()}, bf16);
  const SequenceInfo seq = dense_sequences(kTokens / shape.document, shape.document, at::Device(at::kCUDA, 0));
  const AttentionOptions options = spec.options();
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const AttentionResult result = attention_forward(q, k, v, seq, options);
  const double forward = gpu_milliseconds([&] { attention_forward(q, k, v, seq, options); });
  const double backward =
      gpu_milliseconds([&] { attention_backward(dout, q, k, v, result, seq, options, dq, dk, dv); });
  // What the backward pass holds beside inputs and results.
  c10::DeviceAllocator* allocator = at::getDeviceAllocator(at::kCUDA);
  allocator->resetPeakStats(0);
  attention_backward(dout, q, k, v, result, seq, options, dq, dk, dv);
  const auto bytes = allocator->getDeviceStats(0).allocated_bytes[0]; // of all pools together
  const double scratch = static_cast<double>(bytes.peak - bytes.current) / (1 << 30);
  const double flops = 4.0 * kTokens * static_cast<double>(spec.query_width()) * spec.attended_tokens(shape.document);
  std::printf(
      "%-50s forward %7.3f ms %4.0f TFLOP/s, backward %7.3f ms %4.0f TFLOP/s, scratch %.2f GiB\n", shape.name, forward,
      flops / forward * 1e-9, backward, 2.5 * flops / backward * 1e-9, scratch);
  std::fflush(stdout);
}

TEST(AttentionSpeed, LayersOfGemma) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  const auto spec = [](int64_t heads, int64_t kv_heads, int64_t head_dim) {
    return AttentionSpec{.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  };
  AttentionSpec sliding = spec(32, 16, 256), capped = spec(16, 8, 256);
  sliding.window = 1024;
  capped.softcap = 50;
  AttentionSpec capped_sliding = capped;
  capped_sliding.window = 4096;
  for (const Shape& shape : std::initializer_list<Shape>{
           {"Gemma-4-31B, full: 32 heads of 512, 1 document", spec(32, 4, 512), 8192},
           {"the same, 2 documents", spec(32, 4, 512), 4096},
           {"the same, 16 documents", spec(32, 4, 512), 512},
           {"Gemma-4-31B, window 1024: 32 heads of 256", sliding, 8192},
           {"64 heads of 256, fused: as many operations", spec(64, 8, 256), 8192},
           {"Gemma-2-9B, full: 16 heads of 256, capped", capped, 8192},
           {"the same with a window of 4096", capped_sliding, 8192},
           {"the same without a cap or window, fused", spec(16, 8, 256), 8192},
       }) {
    report(shape);
  }
}

// What ATen's kernel for heads of any size takes forward, with the keys repeated for each query head.
TEST(AttentionSpeed, EfficientAttentionOfATen) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const at::Tensor q = at::randn({1, 32, kTokens, 512}, bf16), k = at::randn_like(q), v = at::randn_like(q);
  const double ms = gpu_milliseconds([&] {
    at::_scaled_dot_product_efficient_attention(
        q, k, v, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true);
  });
  const double flops = 2.0 * kTokens * kTokens * 32 * 512;
  std::printf("ATen's efficient attention, 32 heads of 512: forward %7.3f ms %5.0f TFLOP/s\n", ms, flops / ms * 1e-9);
}

} // namespace
} // namespace distill::models
