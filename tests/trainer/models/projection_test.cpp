#include "trainer/models/projection.h"

#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"

namespace distill::models {
namespace {

constexpr double kExact = 1e-12;

using ProjectionTest = DeviceTest;

TEST_F(ProjectionTest, ResidualIsAddedAndLeftAlone) {
  const at::Tensor x = randn({4, 6});
  const Projection projection{.weight_OI = randn({3, 6})};
  const at::Tensor residual = randn({4, 3});
  const at::Tensor before = residual.clone();
  const Operand operand = operand_of(projection, x);
  const at::Tensor sum = multiply_add(projection, operand, residual);
  EXPECT_LT(relative_error(sum, residual + at::matmul(x, projection.weight_OI.t())), kExact);
  EXPECT_TRUE(at::equal(residual, before));
}

TEST_F(ProjectionTest, TheNormOfAnInputAddsTheResidualToIt) {
  const Projection projection{.weight_OI = randn({5, 6}), .bias_O = randn({5})};
  const at::Tensor x = randn({4, 6}), residual = randn({4, 6}), norm = randn({6});
  SublayerInput input{.x_NH = x.clone(), .norm_H = norm, .eps = 1e-5, .residual_NH = residual};
  const at::Tensor y = multiply(projection, operand_of(projection, input));
  EXPECT_TRUE(at::equal(input.x_NH, x + residual));
  const at::Tensor normed = reference_rms_norm(x + residual, norm, 1e-5);
  EXPECT_LT(relative_error(input.value(), normed), kExact);
  EXPECT_LT(relative_error(y, at::matmul(normed, projection.weight_OI.t()) + projection.bias_O), kExact);
}

TEST_F(ProjectionTest, AFloat8WeightRoundsWhateverItsInputIs) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const Projection exact{.weight_OI = randn({32, 64}, dtype)};
  const Float8Rows rows = float8_rows(exact.weight_OI);
  const Projection float8{.weight_OI = rows.values_RC, .scale_O = rows.scale_R};
  const at::Tensor norm = randn({64}, dtype);
  const auto normed = [&](const at::Tensor& x) { return SublayerInput{.x_NH = x, .norm_H = norm, .eps = 1e-5}; };
  const at::Tensor x = randn({16, 64}, dtype), gate_up = randn({16, 128}, dtype), residual = randn({16, 32}, dtype);
  SublayerInput input = normed(x), again = normed(x);
  const auto expect_near = [](const at::Tensor& actual, const at::Tensor& expected) {
    const double error = ((actual - expected).to(at::kDouble).norm() / expected.to(at::kDouble).norm()).item<double>();
    EXPECT_LT(error, 0.06);
    EXPECT_GT(error, 1e-3); // it was rounded
  };
  expect_near(multiply(float8, operand_of(float8, x)), multiply(exact, operand_of(exact, x)));
  expect_near(multiply(float8, operand_of(float8, input)), multiply(exact, operand_of(exact, again)));
  expect_near(
      multiply_add(float8, operand_of_glu(float8, gate_up, Activation::kSwiGlu), residual),
      multiply_add(exact, operand_of_glu(exact, gate_up, Activation::kSwiGlu), residual));
  const at::Tensor dy = randn({16, 32}, dtype);
  const Float8Rows powers = float8_rows(exact.weight_OI, {.power_of_two = true});
  expect_near(
      input_gradient({.weight_OI = powers.values_RC, .scale_O = powers.scale_R}, dy), input_gradient(exact, dy));
}

TEST_F(ProjectionTest, ANewGradientIsOverwritten) {
  const at::Tensor x = randn({4, 6}), dy = randn({4, 3});
  const Projection projection{.weight_OI = randn({3, 6}), .bias_O = randn({3})};
  Projection gradient{
      .weight_OI = at::full({3, 6}, 7.0, options()), .bias_O = at::zeros({3}, options()), .is_new = true};
  add_weight_gradient(projection, gradient, dy, x);
  add_bias_gradient(gradient, dy);
  EXPECT_LT(relative_error(gradient.weight_OI, at::matmul(dy.t(), x)), kExact);
  EXPECT_LT(relative_error(gradient.bias_O, dy.sum(0)), kExact);
  gradient.is_new = false;
  add_weight_gradient(projection, gradient, dy, x);
  EXPECT_LT(relative_error(gradient.weight_OI, 2 * at::matmul(dy.t(), x)), kExact);
}

TEST_F(ProjectionTest, BothGradientsShareWhatTheAdaptersNeed) {
  const auto adapter = [&](const std::function<at::Tensor(at::IntArrayRef)>& make) {
    Adapter own{.a_RI = make({4, 6})};
    own.modules = {{.b_OR = make({2, 1}), .scale = 0.5}, {.b_OR = make({3, 3}), .first_row = 2}};
    return own;
  };
  const Projection projection{.weight_OI = randn({5, 6}), .adapter = adapter([&](auto sizes) { return randn(sizes); })};
  const at::Tensor x = randn({4, 6}), dy = randn({4, 5});
  const auto gradient = [&] {
    return Projection{.adapter = adapter([&](auto sizes) { return at::zeros(sizes, options()); })};
  };
  Projection alone = gradient();
  add_weight_gradient(projection, alone, dy, x);
  const at::Tensor dx = input_gradient(projection, dy);
  for (const bool input_first : {false, true}) {
    SharedGradient low;
    Projection own = gradient();
    at::Tensor own_dx = input_first ? input_gradient(projection, dy, &low) : at::Tensor();
    add_weight_gradient(projection, own, dy, x, &low);
    own_dx = input_first ? own_dx : input_gradient(projection, dy, &low);
    EXPECT_TRUE(at::equal(own_dx, dx));
    EXPECT_TRUE(at::equal(own.adapter.a_RI, alone.adapter.a_RI));
    EXPECT_TRUE(at::equal(own.adapter.modules[1].b_OR, alone.adapter.modules[1].b_OR));
    const at::Tensor expected = at::cat(
        {0.5 * at::matmul(dy.narrow(1, 0, 2), projection.adapter.modules[0].b_OR),
         at::matmul(dy.narrow(1, 2, 3), projection.adapter.modules[1].b_OR)},
        1);
    EXPECT_LT(relative_error(low.dlow_NR, expected), kExact);
  }
}

TEST_F(ProjectionTest, BothFloat8GradientsShareTheRoundedGradient) {
  const at::ScalarType dtype = test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  const at::Tensor weight = randn({32, 64}, dtype), x = randn({40, 64}, dtype), dy = randn({40, 32}, dtype);
  const Float8Rows rows = float8_rows(weight, {.power_of_two = true});
  at::Tensor counts = at::zeros({kFloat8Operands, kFloat8Counts}, options(at::kLong));
  Projection projection{.weight_OI = rows.values_RC, .scale_O = rows.scale_R};
  for (int64_t operand = 0; operand < kFloat8Operands; ++operand) {
    projection.float8_counts[static_cast<size_t>(operand)] = counts[operand];
  }
  const auto values_of = [&](Float8Operand operand) {
    return counts[static_cast<int64_t>(operand)][kFloat8Values].item<int64_t>();
  };
  const auto gradient = [&] {
    return Projection{.weight_OI = at::full({32, 64}, std::nan(""), options(at::kFloat)), .is_new = true};
  };
  const at::Tensor exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
  const auto error = [&](const Projection& own) {
    return ((own.weight_OI.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  };
  Projection plain = gradient();
  add_weight_gradient(projection, plain, dy, x);
  EXPECT_LT(error(plain), 1e-5); // in the compute dtype
  const at::Tensor dx = input_gradient(projection, dy);
  projection.float8_weight_gradient = true;
  Projection alone = gradient();
  add_weight_gradient(projection, alone, dy, x);
  EXPECT_LT(error(alone), 0.06);
  EXPECT_GT(error(alone), 5e-3);
  for (const bool input_first : {false, true}) {
    counts.zero_();
    SharedGradient shared;
    Projection own = gradient();
    at::Tensor own_dx = input_first ? input_gradient(projection, dy, &shared) : at::Tensor();
    add_weight_gradient(projection, own, dy, x, &shared);
    own_dx = input_first ? own_dx : input_gradient(projection, dy, &shared);
    EXPECT_TRUE(at::equal(own_dx, dx));
    EXPECT_TRUE(at::equal(own.weight_OI, alone.weight_OI));
    EXPECT_EQ(values_of(Float8Operand::kGradients), 40 / kFloat8SampledRows * 32); // rounded once
    EXPECT_EQ(values_of(Float8Operand::kWeightGradients), 64 / kFloat8SampledRows * 40);
    own.is_new = false;
    add_weight_gradient(projection, own, dy, x, &shared);
    EXPECT_LT(relative_error(own.weight_OI, 2 * alone.weight_OI), 1e-5);
  }
  Projection none;
  EXPECT_NO_THROW(add_weight_gradient(projection, none, dy, x));
}

TEST_F(ProjectionTest, AGradientOfAnotherProductIsRefused) {
  const Projection projection{.weight_OI = randn({3, 6})};
  const at::Tensor x = randn({4, 6}), dy = randn({4, 1});
  Projection other{.weight_OI = at::zeros({1, 6}, options())}, none;
  EXPECT_THROW(add_weight_gradient(projection, other, dy, x), c10::Error);
  EXPECT_FALSE(none.needs_input());
  EXPECT_NO_THROW(add_weight_gradient(projection, none, dy, x));
}

} // namespace
} // namespace distill::models
