#include "trainer/models/ops/float8.h"
#include "trainer/models/ops/glu.h"

#include "tests/trainer/models/test_device.h"
#include "trainer/models/float8_products.h"
#include "trainer/models/ops/float8_format.h"
#include "trainer/models/ops/float8_shard.h"
#include "trainer/models/ops/product_add.h"
#include "trainer/models/ops/rms_norm.h"

namespace distill::models {
namespace {

class Float8Test : public DeviceTest {
 protected:
  static at::ScalarType compute_dtype() {
    return test_device().is_cuda() ? at::kBFloat16 : at::kFloat;
  }
  // Rows of very different sizes, with one outlier each.
  static at::Tensor matrix(int64_t rows, int64_t columns) {
    at::Tensor x = randn({rows, columns});
    x.mul_(at::exp(2 * randn({rows, 1})));
    x.select(1, columns / 3).mul_(30);
    return x.to(compute_dtype());
  }
  static void expect_equal(const Float8Rows& actual, const Float8Rows& expected) {
    EXPECT_TRUE(at::equal(actual.values_RC.view(at::kByte), expected.values_RC.view(at::kByte)));
    EXPECT_TRUE(at::equal(actual.scale_R, expected.scale_R));
  }
};

TEST_F(Float8Test, EveryElementIsRoundedToTheNearest) {
  const at::Tensor x = matrix(33, 176);
  const Float8Rows rows = float8_rows(x);
  const at::Tensor exact = x.to(at::kDouble);
  const at::Tensor scale = rows.scale_R.to(at::kDouble).unsqueeze(1);
  EXPECT_LT(relative_error(scale.squeeze(1), exact.abs().amax(1) / 448), 1e-6);
  // e4m3 has 3 bits of mantissa: half a unit is a sixteenth of the value, and 2^-10 below the smallest normal number.
  const at::Tensor error = (float8_to_float(rows).to(at::kDouble) - exact).abs();
  const at::Tensor allowed = at::maximum(exact.abs() / 16, scale * std::pow(2.0, -10)) * (1 + 1e-5);
  EXPECT_TRUE((error <= allowed).all().item<bool>());
  // The largest element of each row is exact to fp32's rounding.
  EXPECT_LT(relative_error(float8_to_float(rows).abs().amax(1), exact.abs().amax(1)), 1e-6);
}

TEST_F(Float8Test, TheSameBitsOnEveryDevice) {
  for (const int64_t columns : {16, 96, 4096, 20000}) {
    const at::Tensor x = matrix(5, columns);
    const Float8Rows here = float8_rows(x);
    const Float8Rows host = float8_rows(x.cpu());
    expect_equal({here.values_RC.cpu(), here.scale_R.cpu()}, host);
  }
}

TEST_F(Float8Test, RowsOfZerosStayZero) {
  at::Tensor x = matrix(4, 64);
  x[2].zero_();
  const Float8Rows rows = float8_rows(x);
  EXPECT_TRUE(at::isfinite(rows.scale_R).all().item<bool>());
  EXPECT_EQ(float8_to_float(rows)[2].abs().max().item<float>(), 0);
}

TEST_F(Float8Test, AProductHasOnlyTheErrorOfItsAccumulation) {
  for (const auto& [tokens, inner, outputs] : {std::array<int64_t, 3>{48, 64, 32}, {17, 1024, 48}, {256, 4096, 512}}) {
    const Float8Rows x = float8_rows(matrix(tokens, inner));
    const Float8Rows weight = float8_rows(matrix(outputs, inner));
    const at::Tensor y = float8_linear(x, weight, compute_dtype());
    // fp64 on the same rounded operands.
    const at::Tensor x64 = x.values_RC.to(at::kDouble) * x.scale_R.to(at::kDouble).unsqueeze(1);
    const at::Tensor w64 = weight.values_RC.to(at::kDouble) * weight.scale_R.to(at::kDouble).unsqueeze(1);
    const at::Tensor exact = at::mm(x64, w64.t());
    // The error of each element is compared with the size of its terms: the tensor cores' fast accumulation holds about
    // 14 bits.
    const at::Tensor terms = at::mm(x64.abs(), w64.abs().t());
    const double error = ((y.to(at::kDouble) - exact).abs() / terms).max().item<double>();
    EXPECT_LT(error, test_device().is_cuda() ? 8e-3 : 1e-6) << tokens << " x " << inner << " x " << outputs;
    const double norm_error = ((y.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
    EXPECT_LT(norm_error, test_device().is_cuda() ? 8e-3 : 1e-6) << tokens << " x " << inner << " x " << outputs;
  }
}

TEST_F(Float8Test, AProductCanAddAResidual) {
  for (const auto& [tokens, inner, outputs] : {std::array<int64_t, 3>{48, 64, 32}, {256, 4096, 512}}) {
    const at::Tensor x = matrix(tokens, inner), weight = matrix(outputs, inner), residual = matrix(tokens, outputs);
    const Float8Rows x8 = float8_rows(x), weight8 = float8_rows(weight);
    const at::Tensor exact = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()) + residual.to(at::kDouble);
    const at::Tensor exact8 =
        at::mm(float8_to_float(x8).to(at::kDouble), float8_to_float(weight8).to(at::kDouble).t()) +
        residual.to(at::kDouble);
    const auto error = [](const at::Tensor& actual, const at::Tensor& expected) {
      return ((actual.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
    };
    const at::Tensor before = residual.clone();
    at::Tensor y = at::empty_like(residual), y8 = at::empty_like(residual);
    product_add_out(x, weight, residual, y);
    product_add_out(x8, weight8, residual, y8);
    EXPECT_LT(error(y, exact), test_device().is_cuda() ? 3e-3 : 1e-6);
    EXPECT_LT(error(y8, exact8), test_device().is_cuda() ? 8e-3 : 1e-6);
    EXPECT_TRUE(at::equal(residual, before));
  }
}

TEST_F(Float8Test, ABiasIsAdded) {
  const Float8Rows x = float8_rows(matrix(32, 64)), weight = float8_rows(matrix(48, 64));
  const at::Tensor bias = matrix(1, 48).squeeze(0);
  for (const at::ScalarType dtype : {compute_dtype(), at::kFloat}) {
    const at::Tensor without = float8_linear(x, weight, dtype).to(at::kDouble);
    const at::Tensor with = float8_linear(x, weight, dtype, bias.to(dtype)).to(at::kDouble);
    EXPECT_LT(relative_error(with, without + bias.to(at::kDouble)), dtype == at::kFloat ? 1e-6 : 1e-2);
  }
}

TEST_F(Float8Test, FusedOpsGiveTheBitsOfTheOpsOneAfterTheOther) {
  for (const int64_t hidden : {16, 72, 576, 4096, 8192, 18432}) {
    for (const int64_t tokens : {1, 7, 33}) {
      const at::Tensor x = matrix(tokens, hidden), residual = matrix(tokens, hidden);
      const at::Tensor weight = matrix(1, hidden).squeeze(0);
      const double offset = tokens == 7 ? 1 : 0;
      const RmsNormResult norm = rms_norm_forward(x, weight, 1e-5, offset);
      const Float8RmsNormResult norm8 = rms_norm_forward_float8(x, weight, 1e-5, offset);
      expect_equal(norm8.y_NH, float8_rows(norm.y_NH));
      EXPECT_TRUE(at::equal(norm8.rstd_N, norm.rstd_N));

      at::Tensor sum = x.clone(), sum8 = x.clone();
      const RmsNormResult added = add_rms_norm_forward_(sum, residual, weight, 1e-5, offset);
      const Float8RmsNormResult added8 = add_rms_norm_forward_float8_(sum8, residual, weight, 1e-5, offset);
      expect_equal(added8.y_NH, float8_rows(added.y_NH));
      EXPECT_TRUE(at::equal(sum8, sum));

      const at::Tensor gate_up = matrix(tokens, 2 * hidden);
      for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGlu}) {
        expect_equal(glu_forward_float8(gate_up, activation), float8_rows(glu_forward(gate_up, activation)));
      }
    }
  }
}

TEST_F(Float8Test, ScalesCanBeTheSmallestPowersOfTwoThatServe) {
  at::Tensor x = matrix(40, 176);
  x[3].zero_();
  x[4].clamp_(-7, 7)[11] = 7; // 448 / 64: the scale is exact
  x[5].clamp_(-7, 7)[11] = 7.0625; // just above
  const Float8Rows rows = float8_rows(x, {.power_of_two = true});
  const at::Tensor scale = rows.scale_R.to(at::kDouble), largest = x.to(at::kDouble).abs().amax(1);
  EXPECT_TRUE(std::get<0>(at::frexp(scale)).eq(0.5).all().item<bool>());
  EXPECT_TRUE((scale * 448 >= largest).all().item<bool>());
  EXPECT_TRUE((scale * 224 < at::clamp_min(largest, 448 * kFloat8SmallestPower)).all().item<bool>());
  EXPECT_EQ(scale[3].item<double>(), kFloat8SmallestPower);
  EXPECT_EQ(scale[4].item<double>(), 1.0 / 64);
  EXPECT_EQ(scale[5].item<double>(), 1.0 / 32);
  expect_equal({rows.values_RC.cpu(), rows.scale_R.cpu()}, float8_rows(x.cpu(), {.power_of_two = true}));
}

TEST_F(Float8Test, FactorsScaleTheColumnsFirst) {
  for (const int64_t columns : {16, 90, 4096, 20000}) {
    const at::Tensor x = matrix(5, columns);
    const at::Tensor factor = at::exp2(randn({columns}).mul_(3).round_()).to(at::kFloat);
    expect_equal(float8_rows(x, {.factor_C = factor}), float8_rows(x.to(at::kFloat) * factor));
  }
}

TEST_F(Float8Test, WhatRoundingLosesIsCounted) {
  const int64_t rows = 21, sampled = 3; // rows 0, 8, 16
  for (const int64_t columns : {64, 6000}) {
    const auto lost_of = [&](const at::Tensor& x, const Float8Rows& rounded) {
      const at::Tensor lost = x.ne(0).logical_and(rounded.values_RC.to(at::kFloat).eq(0));
      return lost.slice(0, 0, rows, kFloat8SampledRows).sum().item<int64_t>();
    };
    at::Tensor x = matrix(rows, columns) * at::exp(-8 * randn({rows, columns}).abs()).to(compute_dtype());
    x[8].zero_();
    at::Tensor counts = at::zeros({kFloat8Counts}, options(at::kLong));
    const int64_t lost = lost_of(x, float8_rows(x, {.counts = counts}));
    EXPECT_GT(lost, 0);
    EXPECT_EQ(counts[kFloat8Lost].item<int64_t>(), lost);
    EXPECT_EQ(counts[kFloat8Values].item<int64_t>(), sampled * columns);
    EXPECT_EQ(counts[kFloat8BadRows].item<int64_t>(), 0);

    x[1][5] = std::numeric_limits<float>::infinity();
    x[3][6] = std::numeric_limits<float>::quiet_NaN();
    x[3][7] = std::numeric_limits<float>::quiet_NaN();
    const Float8Rows bad = float8_rows(x, {.counts = counts});
    EXPECT_EQ(counts[kFloat8BadRows].item<int64_t>(), 2);
    EXPECT_EQ(counts[kFloat8Values].item<int64_t>(), 2 * sampled * columns);
    EXPECT_TRUE(float8_to_float(bad)[1].isnan().any().item<bool>());
    EXPECT_TRUE(float8_to_float(bad)[3].isnan().all().item<bool>());
    EXPECT_TRUE(float8_to_float(bad)[2].isfinite().all().item<bool>());

    counts.zero_();
    const at::Tensor gate_up = matrix(rows, 2 * columns);
    const Float8Rows act = glu_forward_float8(gate_up, Activation::kSwiGlu, counts);
    EXPECT_EQ(counts[kFloat8Lost].item<int64_t>(), lost_of(glu_forward(gate_up, Activation::kSwiGlu), act));
  }
}

TEST_F(Float8Test, ATransposeHasEveryByteInItsPlace) {
  for (const auto& [rows, columns] : {std::array<int64_t, 2>{4, 4}, {16, 132}, {640, 1040}, {128, 128}, {260, 12}}) {
    const at::Tensor bytes = at::randint(0, 256, {rows, columns}, options(at::kByte));
    const at::Tensor transposed = float8_transpose(bytes.view(at::kFloat8_e4m3fn));
    EXPECT_TRUE(at::equal(transposed.view(at::kByte), bytes.t())) << rows << " x " << columns;
  }
}

TEST_F(Float8Test, ATransposeCanHaveZerosBehindItsColumns) {
  for (const auto& [rows, columns, wanted] :
       {std::array<int64_t, 3>{1, 4, 16}, {17, 132, 32}, {127, 64, 128}, {129, 1040, 144}, {640, 16, 656}}) {
    const at::Tensor bytes = at::randint(0, 256, {rows, columns}, options(at::kByte));
    const at::Tensor transposed = float8_transpose(bytes.view(at::kFloat8_e4m3fn), wanted).view(at::kByte);
    EXPECT_TRUE(at::equal(transposed.narrow(1, 0, rows), bytes.t())) << rows << " x " << columns;
    EXPECT_EQ(transposed.narrow(1, rows, wanted - rows).count_nonzero().item<int64_t>(), 0) << rows << " x " << columns;
  }
}

TEST_F(Float8Test, TheGradientOfAnInputHasOnlyTheErrorOfItsAccumulation) {
  for (const auto& [tokens, inputs, outputs] : {std::array<int64_t, 3>{48, 64, 32}, {17, 48, 1024}, {256, 512, 4096}}) {
    const at::Tensor dy = matrix(tokens, outputs);
    const Float8Rows weight = float8_rows(matrix(outputs, inputs), {.power_of_two = true});
    const Float8Rows rounded = float8_rows(dy, {.factor_C = weight.scale_R});
    const at::Tensor dx = float8_linear_backward_input(rounded, weight, dy.scalar_type());
    EXPECT_EQ(dx.scalar_type(), dy.scalar_type());
    // fp64 on the same rounded operands.
    const at::Tensor dy64 = float8_to_float(rounded).to(at::kDouble);
    const at::Tensor w64 = weight.values_RC.to(at::kDouble);
    const at::Tensor exact = at::mm(dy64, w64);
    const double tolerance = test_device().is_cuda() ? 8e-3 : 1e-6;
    EXPECT_LT(((dx.to(at::kDouble) - exact).abs() / at::mm(dy64.abs(), w64.abs())).max().item<double>(), tolerance);
    EXPECT_LT(((dx.to(at::kDouble) - exact).norm() / exact.norm()).item<double>(), tolerance);
    // The result is the gradient: besides the weight, only the operand dy has been rounded.
    const at::Tensor unrounded = at::mm(dy.to(at::kDouble), float8_to_float(weight).to(at::kDouble));
    EXPECT_LT(((dx.to(at::kDouble) - unrounded).norm() / unrounded.norm()).item<double>(), 0.05);
  }
}

// Scales of tokens that differ by as much as gradients may.
at::Tensor token_scales(const at::Tensor& exponents) {
  return at::exp(exponents.mul(4)).mul_(1e-7).to(at::kFloat);
}

TEST_F(Float8Test, ScaledColumnsAreRoundedToTheNearest) {
  for (const auto& [tokens, inputs] :
       {std::array<int64_t, 2>{1, 16}, {17, 48}, {130, 80}, {64, 272}, {300, 1040}, {1025, 64}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(absl::StrCat(tokens, " x ", inputs, " ", c10::toString(dtype)));
      const at::Tensor x = matrix(tokens, inputs).mul(0.1).to(dtype), s = token_scales(randn({tokens}));
      const int64_t whole = (tokens + kFloat8Tokens - 1) / kFloat8Tokens * kFloat8Tokens + kFloat8Tokens;
      at::Tensor counts = at::zeros({kFloat8Counts}, options(at::kLong));
      const Float8Rows columns = float8_scaled_columns(x, s, whole, counts);
      ASSERT_EQ(columns.values_RC.sizes(), at::IntArrayRef({inputs, whole}));
      const at::Tensor exact = (x.to(at::kDouble) * s.to(at::kDouble).unsqueeze(1)).t();
      const at::Tensor scale = columns.scale_R.to(at::kDouble).unsqueeze(1);
      EXPECT_LT(relative_error(scale.squeeze(1) * 448 / exact.abs().amax(1), at::ones_like(exact.amax(1))), 1e-6);
      const at::Tensor values = float8_to_float(columns).to(at::kDouble);
      const at::Tensor error = (values.narrow(1, 0, tokens) - exact).abs();
      const at::Tensor allowed = at::maximum(exact.abs() / 16, scale * std::pow(2.0, -10)) * (1 + 1e-5);
      EXPECT_TRUE((error <= allowed).all().item<bool>());
      EXPECT_EQ(columns.values_RC.view(at::kByte).narrow(1, tokens, whole - tokens).count_nonzero().item<int64_t>(), 0);

      // The first of every 8 inputs is counted.
      const at::Tensor sample = values.narrow(1, 0, tokens).slice(0, 0, inputs, kFloat8SampledRows);
      const int64_t lost = sample.eq(0).sum().item<int64_t>(); // x has no zeros
      EXPECT_GT(tokens < 64 ? 1 : lost, 0);
      EXPECT_EQ(counts[kFloat8Lost].item<int64_t>(), lost);
      EXPECT_EQ(counts[kFloat8Values].item<int64_t>(), sample.numel());
      EXPECT_EQ(counts[kFloat8BadRows].item<int64_t>(), 0);

      // The same bits on every device, and with rows that do not begin at an aligned address.
      const Float8Rows host = float8_scaled_columns(x.cpu(), s.cpu(), whole);
      expect_equal({columns.values_RC.cpu(), columns.scale_R.cpu()}, host);
      const at::Tensor unaligned = at::empty({tokens * inputs + 1}, x.options()).narrow(0, 1, tokens * inputs);
      unaligned.view(x.sizes()).copy_(x);
      expect_equal(float8_scaled_columns(unaligned.view(x.sizes()), s, whole), columns);
    }
  }
}

// The gradients of tokens that no loss depends on are zeros: they say nothing about what is lost.
TEST_F(Float8Test, TokensWithoutAGradientAreNotCountedAsLost) {
  const at::Tensor x = randn({64, 64}, compute_dtype());
  at::Tensor dy = randn({64, 32}, compute_dtype());
  dy.narrow(0, 7, 30).zero_();
  at::Tensor counts = at::zeros({kFloat8Counts}, options(at::kLong));
  const Float8Rows columns = float8_scaled_columns(x, float8_rows(dy).scale_R, 64, counts);
  EXPECT_EQ(counts[kFloat8Lost].item<int64_t>(), 0);
  EXPECT_EQ(counts[kFloat8Values].item<int64_t>(), 64 / kFloat8SampledRows * 64);
  EXPECT_EQ(columns.values_RC.view(at::kByte).narrow(1, 7, 30).bitwise_and(0x7f).count_nonzero().item<int64_t>(), 0);
}

// A layer's tensors for the gradient of its weight, and that gradient in fp64.
struct WeightGradientCase {
  at::Tensor dy, x;
  Float8Rows weight, rounded_dy;
  at::Tensor exact, of_rounded; // of dy and x, of the same after they were rounded as float8.h says

  WeightGradientCase(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w)
      : dy(dy), x(x), weight(float8_rows(w, {.power_of_two = true})) {
    rounded_dy = float8_rows(dy, {.factor_C = weight.scale_R});
    exact = at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
    const at::Tensor scaled = (x.to(at::kFloat) * rounded_dy.scale_R.unsqueeze(1)).t().contiguous();
    const at::Tensor q_ON = rounded_dy.values_RC.to(at::kDouble).t() / weight.scale_R.to(at::kDouble).unsqueeze(1);
    of_rounded = at::mm(q_ON, float8_to_float(float8_rows(scaled)).to(at::kDouble).t());
  }
  at::Tensor gradient(const Float8Accumulation& accumulation, const at::Tensor& before) const {
    at::Tensor grad = before.clone();
    float8_linear_backward_weight(rounded_dy, weight.scale_R, x, grad, accumulation);
    return grad;
  }
  at::Tensor gradient(bool fast = false) const {
    const at::Tensor nan =
        at::full(exact.sizes(), std::numeric_limits<float>::quiet_NaN(), x.options().dtype(at::kFloat));
    return gradient({.accumulate = false, .fast = fast}, nan);
  }
};

double norm_error(const at::Tensor& actual, const at::Tensor& expected) {
  const double error = ((actual.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

TEST_F(Float8Test, TheGradientOfAWeightHasOnlyTheErrorOfItsOperands) {
  for (const auto& [tokens, inputs, outputs] :
       {std::array<int64_t, 3>{48, 64, 32}, {1, 16, 16}, {17, 48, 1024}, {250, 512, 48}, {1000, 80, 64}}) {
    for (const double spread : {0.0, 1.0, 2.3}) { // the tokens' gradients differ by factors of 1, 400, 1e6
      SCOPED_TRACE(absl::StrCat(tokens, " x ", inputs, " x ", outputs, ", spread ", spread));
      at::Tensor dy = randn({tokens, outputs}) * 1e-6;
      dy.mul_(at::exp(at::linspace(-3, 3, tokens, options()).mul_(spread)).unsqueeze(1));
      // Rows of a weight differ by factors of a few.
      const at::Tensor w = randn({outputs, inputs}).mul_(at::exp(0.5 * randn({outputs, 1}))).mul_(0.02);
      const WeightGradientCase c(dy.to(compute_dtype()), matrix(tokens, inputs), w.to(compute_dtype()));
      const at::Tensor grad = c.gradient();
      EXPECT_LT(norm_error(grad, c.of_rounded), test_device().is_cuda() ? 2e-3 : 1e-6);
      EXPECT_LT(norm_error(grad, c.exact), 0.05);
      const at::Tensor before = randn(grad.sizes(), at::kFloat).mul_(c.exact.norm().item<double>());
      EXPECT_LT(
          norm_error(c.gradient({.accumulate = true}, before), before.to(at::kDouble) + c.of_rounded),
          test_device().is_cuda() ? 2e-3 : 1e-6);
    }
  }
}

// On CUDA, how much of the error is that of the sum over tokens (printed).
TEST_F(Float8Test, TheSumOverManyTokensIsExactEnough) {
  const int64_t tokens = test_device().is_cuda() ? 16384 : 512;
  const WeightGradientCase c(
      randn({tokens, 256}, compute_dtype()), randn({tokens, 512}, compute_dtype()), randn({256, 512}, compute_dtype()));
  const double rounding = norm_error(c.of_rounded, c.exact);
  EXPECT_LT(rounding, 0.05);
  EXPECT_GT(rounding, 0.01);
  const double slow = norm_error(c.gradient(), c.of_rounded);
  EXPECT_LT(slow, test_device().is_cuda() ? 2e-3 : 1e-6);
  if (test_device().is_cuda()) {
    const double fast = norm_error(c.gradient(/*fast=*/true), c.of_rounded);
    std::printf("%ld tokens: rounding %.5f, sums %.6f, fast %.6f\n", tokens, rounding, slow, fast);
    EXPECT_LT(fast, 0.1);
    EXPECT_LE(slow, fast);
  }
}

// dy is multiplied by the weight's scales before it is rounded: the smallest of them bounds what is lost.
TEST_F(Float8Test, RowsOfZerosHaveGradients) {
  for (const bool all : {false, true}) {
    at::Tensor w = randn({32, 64}, compute_dtype()).mul_(0.02);
    (all ? w : w.narrow(0, 5, 3)).zero_();
    const WeightGradientCase c(randn({96, 32}, compute_dtype()).mul_(1e-7), matrix(96, 64), w);
    const at::Tensor grad = c.gradient();
    for (const int64_t row : {4, 5, 7}) {
      EXPECT_LT(norm_error(grad[row], c.exact[row]), 0.08) << row;
    }
  }
}

TEST_F(Float8Test, WhatIsNotFiniteIsInTheGradient) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int64_t tokens : {40, 250}) {
    for (const double value : {kInf, -kInf, kNan, -kNan}) {
      const at::Tensor dy = matrix(tokens, 32), x = matrix(tokens, 64), w = matrix(32, 64);
      EXPECT_TRUE(WeightGradientCase(dy, x, w).gradient().isfinite().all().item<bool>());
      at::Tensor bad_x = x.clone(), bad_dy = dy.clone();
      bad_x[tokens - 1][7] = value;
      bad_dy[3][9] = value;
      const at::Tensor finite = WeightGradientCase(dy, bad_x, w).gradient().isfinite();
      EXPECT_FALSE(finite.select(1, 7).any().item<bool>()) << value;
      EXPECT_TRUE(finite.narrow(1, 0, 7).all().item<bool>()) << value;
      EXPECT_TRUE(finite.narrow(1, 8, 56).all().item<bool>()) << value;
      EXPECT_FALSE(WeightGradientCase(bad_dy, x, w).gradient().isfinite().any().item<bool>()) << value;
      at::Tensor counts = at::zeros({kFloat8Counts}, options(at::kLong));
      float8_scaled_columns(bad_x, at::ones({tokens}, options(at::kFloat)), 256, counts);
      EXPECT_EQ(counts[kFloat8BadRows].item<int64_t>(), 1) << value;
    }
  }
}

TEST_F(Float8Test, PartsThatCutRowsGiveTheBitsOfTheWholeMatrix) {
  for (const int64_t columns : {20, 256, 1031}) {
    const int64_t rows = 13, numel = rows * columns;
    const at::Tensor x = matrix(rows, columns).to(at::kFloat);
    const Float8Rows whole = float8_rows(x, {.power_of_two = true});
    at::Tensor largest = at::full({rows}, -std::numeric_limits<float>::infinity(), options(at::kFloat));
    at::Tensor bytes = at::empty({numel}, options(at::kByte));
    const std::vector<int64_t> cuts{0, 7, columns, 3 * columns - 1, 3 * columns + 5, 9 * columns, numel};
    const auto part = [&](size_t i) {
      return MatrixPart{x.flatten().narrow(0, cuts[i], cuts[i + 1] - cuts[i]), cuts[i], columns};
    };
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      raise_row_magnitudes_(part(i), largest);
    }
    EXPECT_TRUE(at::equal(largest, x.abs().amax(1)));
    magnitudes_to_scales_(largest);
    EXPECT_TRUE(at::equal(largest, whole.scale_R));
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      at::Tensor values = bytes.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
      round_matrix_part(part(i), largest, values);
    }
    EXPECT_TRUE(at::equal(bytes.view({rows, columns}), whole.values_RC.view(at::kByte))) << columns;
  }
}

BlockProducts blocks_of_four(int64_t blocks) {
  return BlockProducts(static_cast<size_t>(blocks), {"qkv", "o", "gate_up", "down"});
}

std::vector<std::string> parsed(const std::vector<std::string>& exceptions, int64_t blocks) {
  const auto products = Float8Products::all_but(exceptions, blocks_of_four(blocks));
  EXPECT_TRUE(products.ok()) << products.status();
  return exceptions_of(*products, blocks_of_four(blocks));
}

TEST(Float8ProductsTest, ExceptionsNameProductsBlocksAndRanges) {
  const Float8Products products = *Float8Products::all_but({"down", "0", "2-3.qkv"}, blocks_of_four(5));
  for (int64_t block = 0; block < 5; ++block) {
    EXPECT_FALSE(products.contains(block, "down"));
    EXPECT_EQ(products.contains(block, "o"), block != 0);
    EXPECT_EQ(products.contains(block, "qkv"), block == 1 || block == 4);
  }
  EXPECT_FALSE(products.any_of(0));
  EXPECT_EQ(products.count(), 4 * 3 - 2);
  EXPECT_FALSE(Float8Products().any());
}

TEST(Float8ProductsTest, ExceptionsAreWrittenShort) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(parsed({}, 4), Texts{});
  EXPECT_EQ(parsed({"3.down", "1.down", "2.down"}, 5), Texts{"1-3.down"});
  EXPECT_EQ(parsed({"0-2.gate_up", "3.gate_up"}, 4), Texts{"gate_up"});
  EXPECT_EQ(parsed({"0", "3", "1.o"}, 4), (Texts{"0", "3", "1.o"}));
  EXPECT_EQ(parsed({"qkv", "o", "gate_up", "down"}, 4), Texts{"0-3"});
}

TEST(Float8ProductsTest, WhatIsNotUnderstoodIsNamed) {
  for (const char* text : {"dwon", "3.dwon", "a.down", "4-2", "1-2-3", "-1", "", ".down", "3."}) {
    const auto products = Float8Products::all_but({text}, blocks_of_four(5));
    ASSERT_FALSE(products.ok()) << text;
    EXPECT_NE(products.status().message().find(std::string("found '") + text + "'"), std::string::npos)
        << products.status();
  }
  EXPECT_NE(
      Float8Products::all_but({"5.down"}, blocks_of_four(5))
          .status()
          .message()
          .find("expected blocks from 0 to 4, found '5.down'"),
      std::string::npos);
}

TEST(Float8ProductsTest, AllBadEntriesAreNamedTogether) {
  const auto products = Float8Products::all_but({"dwon", "0.down", "7", "3.dwon", "5-9.qkv"}, blocks_of_four(5));
  ASSERT_FALSE(products.ok());
  EXPECT_NE(
      products.status().message().find("found 'dwon', '3.dwon'; expected blocks from 0 to 4, found '7', '5-9.qkv'"),
      std::string::npos)
      << products.status();
}

} // namespace
} // namespace distill::models
