// Measures time and bandwidth of the elementwise kernels at Llama's shapes, and of the ATen calls that they replace.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "trainer/models/ops/embedding.h"
#include "trainer/models/ops/glu.h"
#include "trainer/models/ops/rms_norm.h"
#include "trainer/models/ops/rope.h"

namespace distill::models {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int kSets = 4; // buffers taken in turn, so that inputs do not stay in L2
constexpr int kRuns = 40;

struct Shape {
  const char* name;
  int64_t hidden, ffn, heads, kv_heads, head_dim;
};

class OpsSpeed : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
  }

  static at::TensorOptions bf16() {
    return at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  }
  static std::vector<at::Tensor> sets(at::IntArrayRef shape) {
    std::vector<at::Tensor> result;
    for (int i = 0; i < kSets; ++i) {
      result.push_back(at::randn(shape, bf16()));
    }
    return result;
  }

  // Milliseconds of one call, the average of kRuns.
  static double milliseconds(const std::function<void(int)>& call) {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    const c10::Stream stream = guard.getStream({at::kCUDA, 0});
    for (int i = 0; i < kSets; ++i) {
      call(i);
    }
    c10::Event start(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    for (int i = 0; i < kRuns; ++i) {
      call(i % kSets);
    }
    end.record(stream);
    end.synchronize();
    return start.elapsedTime(end) / kRuns;
  }

  // `elements`: bf16 elements read and written by one call, nothing read twice.
  static void report(
      const char* op, double elements, const std::function<void(int)>& ours, const std::function<void(int)>& aten) {
    const double our_ms = milliseconds(ours);
    const double aten_ms = milliseconds(aten);
    const auto from = sets({static_cast<int64_t>(elements / 2)}), to = sets({static_cast<int64_t>(elements / 2)});
    const double copy_ms = milliseconds([&](int i) { to[i].copy_(from[i]); });
    std::printf(
        "%-10s %-22s %8.1f us %6.0f GB/s, %3.0f %% of a copy's   ATen %8.1f us  x%.2f\n", GetParam().name, op,
        our_ms * 1e3, elements * 2 / our_ms * 1e-6, copy_ms / our_ms * 100, aten_ms * 1e3, aten_ms / our_ms);
    std::fflush(stdout);
    EXPECT_LT(our_ms, aten_ms * 1.1) << op << " is slower than plain ATen";
  }
};

TEST_P(OpsSpeed, RmsNorm) {
  const int64_t hidden = GetParam().hidden;
  const double row = static_cast<double>(kTokens) * hidden;
  const auto x = sets({kTokens, hidden}), dy = sets({kTokens, hidden}), residual = sets({kTokens, hidden});
  const at::Tensor weight = at::randn({hidden}, bf16());
  const at::Tensor rstd = rms_norm_forward(x[0], weight, 1e-5).rstd_N;
  at::Tensor grad = at::zeros({hidden}, bf16().dtype(at::kFloat));
  const auto aten_forward = [&](const at::Tensor& input) {
    return std::get<0>(at::_fused_rms_norm(input, {hidden}, weight, 1e-5));
  };
  report(
      "rms_norm", 2 * row, [&](int i) { rms_norm_forward(x[i], weight, 1e-5); }, [&](int i) { aten_forward(x[i]); });
  report(
      "rms_norm again", 2 * row, [&](int i) { rms_norm_apply(x[i], rstd, weight); },
      [&](int i) { aten_forward(x[i]); });
  auto sums = sets({kTokens, hidden});
  report(
      "residual + rms_norm", 4 * row, [&](int i) { add_rms_norm_forward_(sums[i], residual[i], weight, 1e-5); },
      [&](int i) { aten_forward(sums[i].add_(residual[i])); });
  report(
      "rms_norm backward", 4 * row, [&](int i) { rms_norm_backward(dy[i], x[i], rstd, weight, grad, residual[i]); },
      [&](int i) {
        auto [dx, dweight] =
            at::_fused_rms_norm_backward(dy[i], x[i], {hidden}, rstd.unsqueeze(1), weight, {true, true});
        grad.add_(dweight);
        dx.add_(residual[i]);
      });
}

void aten_rotate(at::Tensor x_NAD, const RopeAngles& angles) {
  const int64_t half = x_NAD.size(2) / 2;
  at::Tensor low = x_NAD.narrow(2, 0, half), high = x_NAD.narrow(2, half, half);
  const at::Tensor cos = angles.cos_NR.unsqueeze(1), sin = angles.sin_NR.unsqueeze(1);
  const at::Tensor rotated_low = at::mul(low, cos).sub_(at::mul(high, sin));
  const at::Tensor rotated_high = at::mul(high, cos).add_(at::mul(low, sin));
  low.copy_(rotated_low);
  high.copy_(rotated_high);
}

TEST_P(OpsSpeed, Rope) {
  const auto [name, hidden, ffn, heads, kv_heads, head_dim] = GetParam();
  const auto fused = sets({kTokens, (heads + 2 * kv_heads) * head_dim});
  std::vector<at::Tensor> q, k;
  for (const at::Tensor& buffer : fused) {
    const auto parts =
        buffer.unflatten(1, {heads + 2 * kv_heads, head_dim}).split_with_sizes({heads, kv_heads, kv_heads}, 1);
    q.push_back(parts[0]);
    k.push_back(parts[1]);
  }
  const at::Tensor angle = at::randn({kTokens, head_dim / 2}, bf16().dtype(at::kFloat));
  const RopeAngles angles{angle.cos(), angle.sin(), {}};
  const at::Tensor weight = at::randn({head_dim}, bf16());
  const double elements = static_cast<double>(kTokens) * (heads + kv_heads) * head_dim;
  report(
      "rope", 2 * elements, [&](int i) { rope_forward_(q[i], k[i], angles); },
      [&](int i) {
        aten_rotate(q[i], angles);
        aten_rotate(k[i], angles);
      });
  const at::Tensor part = angle.narrow(1, 0, head_dim * 3 / 8);
  const RopeAngles partial{part.cos(), part.sin(), {}}; // three quarters of a head
  report(
      "partial rope", 1.5 * elements, [&](int i) { rope_forward_(q[i], k[i], partial); },
      [&](int i) {
        aten_rotate(q[i].narrow(2, 0, head_dim * 3 / 4), partial);
        aten_rotate(k[i].narrow(2, 0, head_dim * 3 / 4), partial);
      });
  const auto aten_norm = [&](const at::Tensor& x) {
    return std::get<0>(at::_fused_rms_norm(x.contiguous(), {head_dim}, weight, 1e-5));
  };
  report(
      "norm + rope", 2 * elements, [&](int i) { norm_rope_forward(q[i], k[i], weight, weight, 1e-5, angles); },
      [&](int i) {
        aten_rotate(aten_norm(q[i]), angles);
        aten_rotate(aten_norm(k[i]), angles);
      });
  report(
      "norm + partial rope", 2 * elements, [&](int i) { norm_rope_forward(q[i], k[i], weight, weight, 1e-5, partial); },
      [&](int i) {
        aten_rotate(aten_norm(q[i]).narrow(2, 0, head_dim * 3 / 4), partial);
        aten_rotate(aten_norm(k[i]).narrow(2, 0, head_dim * 3 / 4), partial);
      });
  const auto dq = sets(q[0].sizes()), dk = sets(k[0].sizes());
  for (const auto& [op, turned] :
       {std::pair("rope, to its place", angles), std::pair("partial, to its place", partial)}) {
    report(
        op, 2 * elements, [&](int i) { rope_backward(dq[i], dk[i], q[i], k[i], turned); },
        [&](int i) {
          q[i].copy_(dq[i]);
          k[i].copy_(dk[i]);
          aten_rotate(q[i].narrow(2, 0, 2 * turned.cos_NR.size(1)), turned);
          aten_rotate(k[i].narrow(2, 0, 2 * turned.cos_NR.size(1)), turned);
        });
  }
  const at::Tensor rstd = rms_norm_forward(q[0].reshape({-1, head_dim}), weight, 1e-5).rstd_N;
  at::Tensor grad = at::zeros({head_dim}, bf16().dtype(at::kFloat));
  const auto dfused = sets({kTokens, (heads + 2 * kv_heads) * head_dim});
  report(
      "q norm backward", 3.0 * kTokens * heads * head_dim,
      [&](int i) {
        at::Tensor dfirst = dfused[i].narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
        head_rms_norm_backward_(dfirst, q[i], rstd, weight, grad);
      },
      [&](int i) {
        at::Tensor dfirst = dfused[i].narrow(1, 0, heads * head_dim).unflatten(1, {heads, head_dim});
        auto [dx, dweight] = at::_fused_rms_norm_backward(
            dfirst.contiguous(), q[i].contiguous(), {head_dim}, rstd.view({kTokens, heads, 1}), weight, {true, true});
        grad.add_(dweight);
        dfirst.copy_(dx);
      });
}

TEST_P(OpsSpeed, Glu) {
  const int64_t ffn = GetParam().ffn;
  const double row = static_cast<double>(kTokens) * ffn;
  auto gate_up = sets({kTokens, 2 * ffn});
  auto dact = sets({kTokens, ffn});
  const auto halves = [&](int i) { return gate_up[i].chunk(2, 1); };
  report(
      "swiglu", 3 * row, [&](int i) { glu_forward(gate_up[i], Activation::kSwiGlu); },
      [&](int i) { at::silu(halves(i)[0]).mul_(halves(i)[1]); });
  report(
      "geglu", 3 * row, [&](int i) { glu_forward(gate_up[i], Activation::kGeGlu); },
      [&](int i) { at::gelu(halves(i)[0], "tanh").mul_(halves(i)[1]); });
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGlu}) {
    const bool gelu = activation == Activation::kGeGlu;
    report(
        gelu ? "geglu backward + act" : "swiglu backward + act", 6 * row,
        [&](int i) { glu_backward_(dact[i], gate_up[i], activation, /*needs_act=*/true); },
        [&](int i) {
          const auto parts = halves(i);
          at::Tensor result = at::empty_like(gate_up[i]);
          at::Tensor gated = gelu ? at::gelu(parts[0], "tanh") : at::silu(parts[0]);
          at::Tensor dgate = result.narrow(1, 0, ffn), dup = result.narrow(1, ffn, ffn);
          at::mul_out(dup, dact[i], gated);
          gated.mul_(parts[1]);
          const at::Tensor dgated = at::mul(dact[i], parts[1]);
          if (gelu) {
            at::gelu_backward_out(dgate, dgated, parts[0], "tanh");
          } else {
            at::silu_backward_out(dgate, dgated, parts[0]);
          }
        });
  }
}

TEST_P(OpsSpeed, EmbeddingBackward) {
  const int64_t hidden = GetParam().hidden;
  constexpr int64_t kVocab = 128256;
  // Zipf-like: a few tokens make up much of the text.
  const at::Tensor tokens =
      at::rand({kTokens}, bf16().dtype(at::kFloat)).mul_(std::log(kVocab)).exp_().to(at::kLong).clamp_(0, kVocab - 1);
  const auto dx = sets({kTokens, hidden});
  at::Tensor grad = at::zeros({kVocab, hidden}, bf16().dtype(at::kFloat));
  report(
      "embedding backward", static_cast<double>(kTokens) * hidden,
      [&](int i) { embedding_backward(tokens, dx[i], grad); },
      [&](int i) { grad.index_put_({tokens}, dx[i].to(at::kFloat), /*accumulate=*/true); });
}

INSTANTIATE_TEST_SUITE_P(
    Llama, OpsSpeed,
    ::testing::Values(Shape{"llama-8b", 4096, 14336, 32, 8, 128}, Shape{"llama-1b", 2048, 8192, 32, 8, 64}),
    [](const auto& shape) { return std::string(shape.param.name).replace(5, 1, "_"); });

} // namespace
} // namespace distill::models
