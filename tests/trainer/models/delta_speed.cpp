// Measures the sublayer of a gated delta rule at the head shapes of Qwen3.5, in bf16: each of its parts, forward and
// backward. scripts/benches/bench_delta_rule.py measures flash-linear-attention's rule at the same shapes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/trainer/models/gpu_time.h"
#include "trainer/models/ops/delta_rule.h"
#include "trainer/models/ops/gated_norm.h"
#include "trainer/models/ops/short_conv.h"

namespace distill::models {
namespace {

struct Shape {
  int64_t value_heads, tokens, document;
};

TEST(DeltaSpeed, RuleConvolutionAndNorm) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA), fp32 = bf16.dtype(at::kFloat);
  for (const Shape& shape : std::vector<Shape>{
           {32, 8192, 8192},
           {32, 8192, 700},
           {32, 65536, 65536},
           {32, 65536, 8192},
           {48, 8192, 8192},
           {48, 65536, 8192}}) {
    const DeltaSpec spec{.key_heads = 16, .value_heads = shape.value_heads, .key_dim = 128, .value_dim = 128};
    std::vector<int64_t> boundaries;
    for (int64_t first = 0; first < shape.tokens; first += shape.document) {
      boundaries.push_back(first);
    }
    boundaries.push_back(shape.tokens);
    const SequenceInfo seq = packed_sequences(1, shape.tokens, boundaries, at::kCUDA);
    const at::Tensor x = at::randn({shape.tokens, spec.conv_channels()}, bf16);
    const at::Tensor conv = at::randn({spec.conv_channels(), 1, spec.conv_width}, bf16).mul_(0.5);
    const DeltaGates gates{
        at::rand({shape.tokens, shape.value_heads}, fp32).neg_(), at::rand({shape.tokens, shape.value_heads}, fp32)};
    const at::Tensor z = at::randn({shape.tokens, spec.value_width()}, bf16), weight = at::ones({128}, bf16);
    const at::Tensor dout = at::randn({shape.tokens, spec.value_width()}, bf16);
    const at::Tensor qkv = short_conv_forward(x, conv, seq);
    const DeltaResult result = delta_rule_forward(spec, qkv, gates, seq);
    at::Tensor dx = at::empty_like(x), dconv = at::zeros(conv.sizes(), fp32), dz = at::empty_like(z);
    at::Tensor dweight = at::zeros({128}, fp32);
    const double bytes = static_cast<double>(shape.tokens) * static_cast<double>(spec.conv_channels()) * 2;
    std::printf(
        "%ld value heads, %ld tokens, documents of %ld\n", static_cast<long>(shape.value_heads),
        static_cast<long>(shape.tokens), static_cast<long>(shape.document));
    const auto report = [&](const char* name, const auto& call) {
      const double ms = gpu_milliseconds(call, 10);
      std::printf("  %-28s %8.3f ms, %5.2f times reading q, k and v at 3.0 TB/s\n", name, ms, ms / (bytes / 3e9));
      std::fflush(stdout);
    };
    report("convolution", [&] { short_conv_forward(x, conv, seq); });
    report("convolution, backward", [&] { short_conv_backward(qkv, x, conv, seq, dx, dconv); });
    report("rule", [&] { delta_rule_forward(spec, qkv, gates, seq); });
    report("rule, backward", [&] { delta_rule_backward(spec, dout, qkv, gates, result.written_NV, seq); });
    report("gated norm", [&] { gated_norm_forward(result.out_NV, z, weight, 1e-6); });
    report("gated norm, backward", [&] { gated_norm_backward(dout, result.out_NV, z, weight, 1e-6, dz, dweight); });
  }
}

// The rule's errors at the inputs of which bench_delta_rule.py prints flash-linear-attention's.
TEST(DeltaSpeed, ErrorsAgainstFp64) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  constexpr int64_t kTokens = 600;
  const DeltaSpec spec{.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 128};
  const SequenceInfo seq = packed_sequences(1, kTokens, {0, kTokens}, at::kCUDA);
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA), fp32 = bf16.dtype(at::kFloat);
  const at::Tensor qkv = at::randn({kTokens, spec.conv_channels()}, bf16);
  const at::Tensor dout = at::randn({kTokens, spec.value_width()}, bf16);
  const DeltaGates gates{at::rand({kTokens, 2}, fp32).neg_(), at::rand({kTokens, 2}, bf16).to(at::kFloat)};
  const auto results = [&](at::ScalarType dtype, at::ScalarType gate_dtype) {
    const at::Tensor x = qkv.to(dtype);
    const DeltaGates g{gates.decay_NA.to(gate_dtype), gates.beta_NA.to(gate_dtype)};
    const DeltaResult forward = delta_rule_forward(spec, x, g, seq);
    const DeltaGradients back = delta_rule_backward(spec, dout.to(dtype), x, g, forward.written_NV, seq);
    std::vector<at::Tensor> all = at::split(back.dqkv_NC, spec.key_width(), 1);
    all.insert(all.begin(), forward.out_NV);
    all.push_back(back.dgates.decay_NA);
    all.push_back(back.dgates.beta_NA);
    return all;
  };
  const std::vector<at::Tensor> found = results(at::kBFloat16, at::kFloat), wanted = results(at::kDouble, at::kDouble);
  std::printf("errors against fp64:");
  const char* const names[] = {"output", "q", "k", "v", "decay", "beta"};
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = ((found[i].to(at::kDouble) - wanted[i]).norm() / wanted[i].norm()).item<double>();
    std::printf(" %s %.1e", names[i], error);
    EXPECT_LT(error, 8e-3) << names[i];
  }
  std::printf("\n");
}

} // namespace
} // namespace distill::models
