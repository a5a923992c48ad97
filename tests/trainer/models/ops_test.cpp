#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/models/ops/glu.h"
#include "trainer/models/ops/linear.h"
#include "trainer/models/ops/rms_norm.h"

namespace distill::models {
namespace {

constexpr double kExact = 1e-12; // fp64

using LinearTest = DeviceTest;
using RmsNormTest = DeviceTest;
using RopeTest = DeviceTest;
using GluTest = DeviceTest;
using EmbeddingTest = DeviceTest;

TEST_F(LinearTest, GradientsMatchAutogradAndAccumulate) {
  const at::Tensor x = leaf(randn({7, 5}));
  const at::Tensor weight = leaf(randn({3, 5}));
  const at::Tensor bias = leaf(randn({3}));
  const at::Tensor dy = randn({7, 3});
  const auto expected = reference_gradients(at::matmul(x, weight.t()) + bias, dy, {x, weight, bias});
  at::Tensor dweight = at::ones({3, 5}, options());
  at::Tensor dbias = at::ones({3}, options());
  linear_backward_weight(dy, x.detach(), dweight);
  linear_backward_bias(dy, dbias);
  EXPECT_LT(
      relative_error(linear_forward(x.detach(), weight.detach(), bias.detach()), at::matmul(x, weight.t()) + bias),
      kExact);
  EXPECT_LT(relative_error(linear_backward_input(dy, weight.detach()), expected[0]), kExact);
  EXPECT_LT(relative_error(dweight, expected[1] + 1), kExact);
  EXPECT_LT(relative_error(dbias, expected[2] + 1), kExact);
}

// Many bf16 micro-batches into one fp32 gradient: a bf16 accumulator would lose all small additions, which sum up to
// 0.4. A product may add each of its 16 terms to the gradient on its own, half an ulp of 100 (3.8e-6) off at worst.
TEST_F(LinearTest, LowPrecisionWeightGradientsAccumulateInFp32) {
  const at::Tensor x = randn({16, 8}, at::kBFloat16);
  const at::Tensor dy = randn({16, 4}, at::kBFloat16).mul_(1e-3);
  constexpr double kRounding = 100 * 16 * 3.9e-6;
  at::Tensor grad = at::full({4, 8}, 100.0, options(at::kFloat));
  const at::Tensor step = at::matmul(dy.to(at::kDouble).t(), x.to(at::kDouble));
  for (int i = 0; i < 100; ++i) {
    linear_backward_weight(dy, x, grad);
  }
  EXPECT_LT((grad.to(at::kDouble) - 100.0 - 100.0 * step).abs().max().item<double>(), kRounding);
}

TEST_F(LinearTest, AWrittenWeightGradientDoesNotReadWhatWasThere) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = randn({16, 8}, dtype);
    const at::Tensor dy = randn({16, 8}, dtype);
    at::Tensor grad = at::full({8, 8}, std::numeric_limits<double>::quiet_NaN(), options(at::kFloat));
    at::Tensor sum = at::zeros({8, 8}, options(at::kFloat));
    linear_backward_weight(dy, x, grad, /*accumulate=*/false);
    linear_backward_weight(dy, x, sum);
    EXPECT_TRUE(at::equal(grad, sum));
  }
}

TEST_F(RmsNormTest, GradientsMatchAutogradForOddWidths) {
  for (const int64_t width : {1, 5, 16, 40, 257}) {
    const at::Tensor x = leaf(randn({19, width}));
    const at::Tensor weight = leaf(randn({width}));
    const at::Tensor dy = randn({19, width});
    const at::Tensor residual = randn({19, width});
    const at::Tensor expected_y = reference_rms_norm(x, weight, 1e-5);
    const auto expected = reference_gradients(expected_y, dy, {x, weight});
    const RmsNormResult result = rms_norm_forward(x.detach(), weight.detach(), 1e-5);
    at::Tensor grad = at::ones({width}, options());
    const at::Tensor dx = rms_norm_backward(dy, x.detach(), result.rstd_N, weight.detach(), grad, residual);
    EXPECT_LT(relative_error(result.y_NH, expected_y), kExact) << width;
    EXPECT_LT(relative_error(rms_norm_apply(x.detach(), result.rstd_N, weight.detach()), expected_y), kExact) << width;
    EXPECT_LT(relative_error(dx, expected[0] + residual), 1e-11) << width;
    EXPECT_LT(relative_error(grad, expected[1] + 1), kExact) << width;
  }
}

// The error of a bf16 norm is that of rounding its output once.
TEST_F(RmsNormTest, LowPrecisionRoundsOnlyTheResult) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = randn({33, 64}, dtype);
    const at::Tensor weight = randn({64}, dtype);
    const at::Tensor expected = reference_rms_norm(x.to(at::kDouble), weight.to(at::kDouble), 1e-5).to(dtype);
    const RmsNormResult result = rms_norm_forward(x, weight, 1e-5);
    EXPECT_EQ(result.rstd_N.scalar_type(), at::kFloat);
    EXPECT_LT(relative_error(result.y_NH, expected), dtype == at::kHalf ? 1e-3 : 4e-3);
    EXPECT_TRUE(at::equal(rms_norm_apply(x, result.rstd_N, weight), result.y_NH));
    const double differing = result.y_NH.ne(expected).to(at::kDouble).mean().item<double>();
    EXPECT_LT(differing, 0.01);
  }
}

TEST_F(RmsNormTest, MismatchedWeightIsRefused) {
  EXPECT_THROW(rms_norm_forward(randn({2, 4}), randn({5}), 1e-5), c10::Error);
  EXPECT_THROW(rms_norm_forward(randn({2, 4}), randn({4}, at::kFloat), 1e-5), c10::Error);
}

TEST_F(RopeTest, MatchesRotateHalfInPlaceOnStridedHeads) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor fused = randn({9, 100}, dtype);
    at::Tensor x = fused.narrow(1, 20, 60).unflatten(1, {3, 20});
    const at::Tensor cos = randn({9, 10}, at::kFloat);
    const at::Tensor sin = randn({9, 10}, at::kFloat);
    const at::Tensor expected = reference_rope(x.clone(), cos, sin);
    const at::Tensor left_alone = fused.narrow(1, 0, 20).clone();
    rope_forward_(x, {cos, sin});
    EXPECT_LT(relative_error(x, expected), dtype == at::kDouble ? kExact : 1e-6);
    EXPECT_TRUE(at::equal(fused.narrow(1, 0, 20), left_alone));
  }
}

TEST_F(RopeTest, BackwardIsTheGradient) {
  const at::Tensor x = leaf(randn({6, 2, 8}));
  const at::Tensor cos = randn({6, 4}, at::kFloat);
  const at::Tensor sin = randn({6, 4}, at::kFloat);
  at::Tensor dx = randn({6, 2, 8});
  const auto expected = reference_gradients(reference_rope(x, cos, sin), dx, {x});
  rope_backward_(dx, {cos, sin});
  EXPECT_LT(relative_error(dx, expected[0]), kExact);
}

TEST_F(RopeTest, LowPrecisionRoundsOnlyTheResult) {
  at::Tensor x = randn({12, 2, 16}, at::kBFloat16);
  const at::Tensor angle = randn({12, 8}, at::kFloat);
  const at::Tensor expected = reference_rope(x.to(at::kDouble), angle.cos(), angle.sin()).to(at::kBFloat16);
  rope_forward_(x, {angle.cos(), angle.sin()});
  EXPECT_LT(x.ne(expected).to(at::kDouble).mean().item<double>(), 0.01);
}

// Reference values: transformers 5.17, ROPE_INIT_FUNCTIONS["llama3"], head_dim 32, Llama 3.1's parameters.
TEST_F(RopeTest, Llama3FrequenciesAreThoseOfTransformers) {
  const RopeSpec rope{.theta = 500000.0, .dim = 32, .llama3 = Llama3RopeScaling{8.0, 1.0, 4.0, 8192}};
  const std::vector<double> expected{
      1.0,
      0.44036662578582764,
      0.193922758102417,
      0.08539710193872452,
      0.03760603070259094,
      0.016560440883040428,
      0.00729266507551074,
      0.0032114461064338684,
      0.0005248460220173001,
      7.784655463183299e-05,
      3.428102354519069e-05,
      1.5096217794052791e-05,
      6.647869668086059e-06,
      2.927499735960737e-06,
      1.289173155782919e-06,
      5.677088097399974e-07};
  const at::Tensor frequencies = rope_inverse_frequencies(rope).to(at::kDouble);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(frequencies[static_cast<int64_t>(i)].item<double>() / expected[i], 1.0, 2e-7) << i;
  }
}

TEST_F(RopeTest, LinearScalingStretchesPositions) {
  const RopeTable plain = make_rope_table({.dim = 16}, 8, test_device());
  const RopeTable stretched = make_rope_table({.dim = 16, .linear_factor = 2.0}, 16, test_device());
  EXPECT_LT(relative_error(stretched.sin_PR.slice(0, 0, 16, 2), plain.sin_PR), 1e-6);
}

TEST_F(RopeTest, AnglesFollowPositions) {
  const RopeTable table = make_rope_table({.dim = 8}, 10, test_device());
  const SequenceInfo seq = packed_sequences(1, 14, std::vector<int64_t>{0, 4, 14}, test_device());
  const RopeAngles angles = rope_angles(table, seq);
  EXPECT_TRUE(at::equal(angles.cos_NR[3], table.cos_PR[3]));
  EXPECT_TRUE(at::equal(angles.sin_NR[13], table.sin_PR[9]));
  EXPECT_TRUE(at::equal(angles.cos_NR[4], at::ones({4}, options(at::kFloat))));
  EXPECT_FALSE(angles.query_scale_N.defined());
}

// Reference values: transformers 5.17, ROPE_INIT_FUNCTIONS["yarn"], head_dim 16, theta 1e4, factor 8, original context
// 64.
TEST_F(RopeTest, YarnFrequenciesAreThoseOfTransformers) {
  RopeSpec rope{
      .theta = 10000.0, .dim = 16, .yarn = YarnRopeScaling{.factor = 8, .original_max_position_embeddings = 64}};
  const auto expect = [&](const std::vector<double>& expected) {
    const at::Tensor frequencies = rope_inverse_frequencies(rope).to(at::kDouble);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(frequencies[static_cast<int64_t>(i)].item<double>() / expected[i], 1.0, 2e-7) << i;
    }
  };
  expect(
      {1.0, 0.2239946573972702, 0.0416666641831398, 0.0039528473280370235, 0.0012499999720603228,
       0.00039528473280370235, 0.0001250000059371814, 3.9528473280370235e-05});
  rope.yarn->truncate = false;
  expect(
      {1.0, 0.1789761483669281, 0.01319445762783289, 0.0039528473280370235, 0.0012499999720603228,
       0.00039528473280370235, 0.0001250000059371814, 3.9528473280370235e-05});
}

TEST_F(RopeTest, ADocumentIsLongOrShortByItsOwnLength) {
  const RopeSpec rope{.dim = 8, .longrope = LongRopeScaling{{1, 1, 2, 2}, {3, 4, 5, 6}, 4}, .attention_factor = 1.25};
  const auto alone = [&](int64_t length) {
    return rope_angles(make_rope_table(rope, length, test_device()), dense_sequences(1, length, test_device()));
  };
  const SequenceInfo seq = packed_sequences(1, 14, std::vector<int64_t>{0, 4, 14}, test_device());
  const RopeAngles angles = rope_angles(make_rope_table(rope, 14, test_device()), seq);
  EXPECT_TRUE(at::equal(angles.sin_NR.slice(0, 0, 4), alone(4).sin_NR));
  EXPECT_TRUE(at::equal(angles.sin_NR.slice(0, 4), alone(10).sin_NR));
  EXPECT_NEAR(alone(4).sin_NR[1][2].item<double>(), 1.25 * std::sin(0.01 / 2), 1e-7);
  EXPECT_NEAR(alone(10).sin_NR[1][2].item<double>(), 1.25 * std::sin(0.01 / 5), 1e-7);
}

TEST_F(RopeTest, QueriesAreScaledBeyondTheOriginalContext) {
  const RopeSpec rope{.dim = 8, .query_scaling = QueryScaling{0.5, 4}};
  const auto scale = [&](int64_t length) {
    return rope_angles(make_rope_table(rope, length, test_device()), dense_sequences(1, length, test_device()))
        .query_scale_N;
  };
  EXPECT_FALSE(scale(4).defined());
  EXPECT_EQ(scale(9)[3].item<double>(), 1);
  EXPECT_NEAR(scale(9)[4].item<double>(), 1 + 0.5 * std::log(2), 1e-6);
  EXPECT_NEAR(scale(9)[8].item<double>(), 1 + 0.5 * std::log(3), 1e-6);
}

TEST_F(GluTest, GradientsMatchAutograd) {
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGlu}) {
    const at::Tensor gate_up = leaf(randn({5, 14}));
    const at::Tensor dact = randn({5, 7});
    const at::Tensor expected_act = reference_glu(gate_up, activation);
    const auto expected = reference_gradients(expected_act, dact, {gate_up});
    EXPECT_LT(relative_error(glu_forward(gate_up.detach(), activation), expected_act), kExact);
    for (const bool needs_act : {true, false}) {
      at::Tensor gradient = gate_up.detach().clone();
      at::Tensor act = dact.clone();
      glu_backward_(act, gradient, activation, needs_act);
      EXPECT_LT(relative_error(gradient, expected[0]), kExact);
      EXPECT_LT(relative_error(act, needs_act ? expected_act : dact), kExact);
    }
  }
}

TEST_F(EmbeddingTest, RepeatedTokensAddUp) {
  const at::Tensor tokens = at::tensor({3, 0, 3, 3, 4, 0}, options(at::kLong));
  const at::Tensor weight = leaf(randn({6, 5}));
  const at::Tensor dx = randn({6, 5});
  const auto expected = reference_gradients(weight.index({tokens}), dx, {weight});
  at::Tensor grad = at::ones({6, 5}, options());
  embedding_backward(tokens, dx, grad);
  EXPECT_TRUE(at::equal(embedding_forward(tokens, weight.detach()), weight.detach().index({tokens})));
  EXPECT_LT(relative_error(grad, expected[0] + 1), kExact);
}

// As transformers does it: sqrt(3072) is 55.5 in bf16.
TEST_F(EmbeddingTest, AScaleIsRoundedToTheWeightsDtype) {
  const at::Tensor tokens = at::tensor({3, 0, 3}, options(at::kLong));
  const at::Tensor weight = randn({6, 5}, at::kBFloat16);
  const double scale = std::sqrt(3072.0);
  EXPECT_TRUE(at::equal(embedding_forward(tokens, weight, scale), weight.index({tokens}) * 55.5));
  const at::Tensor dx = randn({3, 5}, at::kBFloat16);
  at::Tensor grad = at::zeros({6, 5}, options(at::kFloat));
  embedding_backward(tokens, dx, grad, scale);
  EXPECT_TRUE(at::equal(grad[0], 55.5 * dx[1].to(at::kFloat)));
}

TEST_F(EmbeddingTest, LowPrecisionAddsInFp32AndRepeatsBitForBit) {
  const at::Tensor tokens = at::randint(0, 7, {9000}, at::kLong).to(test_device());
  const at::Tensor dx = randn({9000, 24}, at::kBFloat16);
  at::Tensor expected = at::zeros({7, 24}, options());
  expected.index_put_({tokens}, dx.to(at::kDouble), /*accumulate=*/true);
  at::Tensor first = at::zeros({7, 24}, options(at::kFloat));
  at::Tensor second = at::zeros({7, 24}, options(at::kFloat));
  embedding_backward(tokens, dx, first);
  embedding_backward(tokens, dx, second);
  EXPECT_LT(relative_error(first, expected), 1e-5);
  EXPECT_TRUE(at::equal(first, second));
}

TEST_F(EmbeddingTest, TokensOutsideTheVocabularyAreRefused) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "a device assertion on CUDA";
  }
  at::Tensor grad = at::zeros({4, 2}, options(at::kFloat));
  EXPECT_THROW(embedding_backward(at::tensor({0, 4}, at::kLong), randn({2, 2}, at::kFloat), grad), c10::Error);
  EXPECT_THROW(embedding_backward(at::tensor({-1, 2}, at::kLong), randn({2, 2}, at::kFloat), grad), c10::Error);
  EXPECT_THROW(embedding_forward(at::tensor({4}, at::kLong), grad), c10::Error);
}

// Attention over views of one fused buffer, as the block calls it.

} // namespace
} // namespace distill::models
