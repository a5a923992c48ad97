// Measures the parts of a layer with experts at the shapes of Qwen3-30B-A3B, 8192 tokens in bf16, and dense products of
// as many operations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "tests/trainer/models/gpu_time.h"
#include "trainer/models/moe_layer.h"
#include "trainer/models/ops/glu.h"
#include "trainer/models/ops/grouped_linear.h"
#include "trainer/models/ops/linear.h"

namespace distill::models {
namespace {

constexpr int64_t kTokens = 8192, kHidden = 2048, kFfn = 768, kExperts = 128, kPerToken = 8;
constexpr int64_t kVisits = kTokens * kPerToken;
constexpr int kRuns = 30;

double report(const char* name, double flops, const std::function<void()>& call) {
  const double ms = gpu_milliseconds(call, kRuns);
  std::printf("%-44s %8.3f ms", name, ms);
  if (flops > 0) {
    std::printf(" %6.0f TFLOP/s", flops / ms * 1e-9);
  }
  std::printf("\n");
  std::fflush(stdout);
  return ms;
}

TEST(MoeSpeed, LayerOfQwen3_30B_A3B) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  const auto bf16 = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const auto randn = [&](at::IntArrayRef sizes, double scale) { return at::randn(sizes, bf16).mul_(scale); };
  const MlpSpec spec{.ffn = kFfn, .experts = ExpertsSpec{kExperts, kPerToken, /*normalise=*/true}};
  MlpParams params;
  params.router.weight_OI = randn({kExperts, kHidden}, 0.02);
  params.gate_up.weight_OI = randn({kExperts * 2 * kFfn, kHidden}, 0.02);
  params.down.weight_OI = randn({kExperts * kHidden, kFfn}, 0.02);
  const at::Tensor x_NH = randn({kTokens, kHidden}, 1), dy_NH = randn({kTokens, kHidden}, 1);
  const Routing routing = route(linear_forward_fp32(x_NH, params.router.weight_OI), kPerToken);
  const at::Tensor tokens_M = visiting_tokens(routing);
  const at::Tensor rows_MH = x_NH.index_select(0, tokens_M);
  const at::Tensor gate_up = grouped_linear_forward(rows_MH, params.gate_up.weight_OI, routing.ends_E);
  const at::Tensor act_MF = glu_forward(gate_up, spec.activation);
  const at::Tensor out_MH = grouped_linear_forward(act_MF, params.down.weight_OI, routing.ends_E);
  const double flops = 2.0 * kVisits * kHidden * kFfn; // of down; gate and up are twice

  report("router's logits", 0, [&] { linear_forward_fp32(x_NH, params.router.weight_OI); });
  const at::Tensor logits_NE = linear_forward_fp32(x_NH, params.router.weight_OI);
  report("softmax, top-k, sort", 0, [&] { route(logits_NE, kPerToken); });
  report("rows of the visits", 0, [&] { x_NH.index_select(0, tokens_M); });
  report("swiglu", 0, [&] { glu_forward(gate_up, spec.activation); });
  report("sums of the visits", 0, [&] { combine_visits(out_MH, routing.places_NK); });
  const double grouped = report("gate and up, grouped", 2 * flops, [&] {
    grouped_linear_forward(rows_MH, params.gate_up.weight_OI, routing.ends_E);
  });
  const at::Tensor dense_gate_up = randn({2 * kFfn, kHidden}, 0.02), dense_down = randn({kHidden, kFfn}, 0.02);
  const double dense = report("gate and up, dense", 2 * flops, [&] { linear_forward(rows_MH, dense_gate_up); });
  report("down, grouped", flops, [&] { grouped_linear_forward(act_MF, params.down.weight_OI, routing.ends_E); });
  report("down, dense", flops, [&] { linear_forward(act_MF, dense_down); });
  const Float8Rows float8_x = float8_rows(rows_MH), float8_weight = float8_rows(params.gate_up.weight_OI);
  const Float8Rows float8_dense = float8_rows(dense_gate_up);
  report("gate and up, grouped, float8", 2 * flops, [&] {
    grouped_float8_linear(float8_x, float8_weight, routing.ends_E, at::kBFloat16);
  });
  report("gate and up, dense, float8", 2 * flops, [&] { float8_linear(float8_x, float8_dense, at::kBFloat16); });
  at::Tensor gradients = at::zeros({kExperts * 2 * kFfn, kHidden}, bf16.dtype(at::kFloat));
  report("gradient of gate and up's weights, grouped", 2 * flops, [&] {
    grouped_linear_backward_weight(gate_up, rows_MH, routing.ends_E, gradients, /*accumulate=*/false);
  });
  at::Tensor dense_gradients = at::zeros({2 * kFfn, kHidden}, bf16.dtype(at::kFloat));
  report("gradient of gate and up's weights, dense", 2 * flops, [&] {
    linear_backward_weight(gate_up, rows_MH, dense_gradients, /*accumulate=*/false);
  });

  const auto forward = [&](const MlpParams& of) {
    SublayerInput input{.x_NH = x_NH};
    MlpSaved saved;
    mlp_layer_rebuild({spec}, of, input, saved);
    mlp_layer_output({spec}, of, saved);
    return saved;
  };
  report("layer, forward", 3 * flops, [&] { forward(params); });
  MlpParams float8 = params;
  for (Projection* projection : {&float8.gate_up, &float8.down}) {
    const Float8Rows rows = float8_rows(projection->weight_OI);
    projection->weight_OI = rows.values_RC;
    projection->scale_O = rows.scale_R;
  }
  report("layer, forward, float8", 3 * flops, [&] { forward(float8); });
  MlpParams grads;
  grads.router.weight_OI = at::zeros({kExperts, kHidden}, bf16.dtype(at::kFloat));
  grads.gate_up.weight_OI = gradients;
  grads.down.weight_OI = at::zeros({kExperts * kHidden, kFfn}, bf16.dtype(at::kFloat));
  at::Tensor no_norm;
  report("layer, forward and backward", 9 * flops, [&] {
    SublayerInput input{.x_NH = x_NH};
    MlpSaved saved = forward(params);
    mlp_layer_backward({spec}, params, dy_NH, dy_NH, input, saved, grads, no_norm);
  });
  EXPECT_LT(grouped, 2 * dense) << "the grouped product is less than half as fast as a dense one";
}

} // namespace
} // namespace distill::models
