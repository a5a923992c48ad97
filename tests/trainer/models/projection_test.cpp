#include "trainer/models/projection.h"

#include <array>
#include <functional>
#include <numeric>

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

// Rows of several groups, one of which has none, and the groups' weights with adapters.
class GroupsTest : public DeviceTest {
 protected:
  static constexpr int64_t kInputs = 32, kOutputs = 48;
  static constexpr std::array<int64_t, 5> kRows{7, 0, 20, 1, 12};
  static constexpr int64_t kGroups = kRows.size(), kTotal = 40;

  static at::Tensor ends() {
    std::array<int32_t, kGroups> ends{};
    std::partial_sum(kRows.begin(), kRows.end(), ends.begin());
    return at::tensor(at::ArrayRef<int32_t>(ends), at::kInt).to(test_device());
  }

  static Projection projection_of(int64_t rank, at::ScalarType dtype) {
    Projection projection{.weight_OI = randn({kGroups * kOutputs, kInputs}, dtype)};
    projection.adapter.a_RI = randn({kGroups * rank, kInputs}, dtype);
    projection.adapter.modules = {{.b_OR = randn({kGroups * kOutputs, rank}, dtype), .scale = 0.5}};
    return projection;
  }

  struct Result {
    at::Tensor y, dx, da, db, dweight;
  };

  static Result run(const Projection& projection, const at::Tensor& x, const at::Tensor& dy) {
    const auto zeros = [&](const at::Tensor& like) {
      return at::zeros(like.sizes(), options(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    };
    Projection gradient;
    gradient.weight_OI = projection.is_float8() ? at::Tensor() : zeros(projection.weight_OI);
    gradient.adapter.a_RI = zeros(projection.adapter.a_RI);
    gradient.adapter.modules = {{.b_OR = zeros(projection.adapter.modules[0].b_OR)}};
    SharedGradient low;
    Result result;
    const at::Tensor rows = at::arange(kTotal, options(at::kInt));
    result.y = multiply_groups(projection, operand_of_rows(projection, x, rows), ends());
    result.dx = input_gradient_of_groups(projection, dy, ends(), &low);
    add_weight_gradient_of_groups(projection, gradient, dy, x, ends(), &low);
    result.da = gradient.adapter.a_RI;
    result.db = gradient.adapter.modules[0].b_OR;
    result.dweight = gradient.weight_OI;
    return result;
  }

  // The same of this weight with the adapters in it, group by group, in fp64.
  static Result merged(const at::Tensor& weight, const Adapter& adapter, const at::Tensor& x, const at::Tensor& dy) {
    const auto of_groups = [&](const at::Tensor& value) {
      return value.to(at::kDouble).view({kGroups, -1, value.size(1)});
    };
    const double scale = adapter.modules[0].scale;
    const at::Tensor a = of_groups(adapter.a_RI), b = of_groups(adapter.modules[0].b_OR), w = of_groups(weight);
    std::vector<at::Tensor> y, dx, da, db, dweight;
    int64_t first = 0;
    for (int64_t group = 0; group < kGroups; ++group) {
      const int64_t rows = kRows[static_cast<size_t>(group)];
      const at::Tensor own_x = x.narrow(0, first, rows).to(at::kDouble),
                       own_dy = dy.narrow(0, first, rows).to(at::kDouble);
      const at::Tensor own = w[group] + scale * at::matmul(b[group], a[group]), dw = at::matmul(own_dy.t(), own_x);
      y.push_back(at::matmul(own_x, own.t()));
      dx.push_back(at::matmul(own_dy, own));
      da.push_back(scale * at::matmul(b[group].t(), dw));
      db.push_back(scale * at::matmul(dw, a[group].t()));
      dweight.push_back(dw);
      first += rows;
    }
    return {at::cat(y), at::cat(dx), at::cat(da), at::cat(db), at::cat(dweight)};
  }
};

// A rank that is a multiple of 8 has a kernel for all groups on CUDA in bf16; another one, and other dtypes, have a
// product for each group.
TEST_F(GroupsTest, EachGroupHasAnAdapterOfItsOwn) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 1.5e-2}}) {
    for (const int64_t rank : {8, 16, 3}) {
      SCOPED_TRACE(testing::Message() << dtype << ", rank " << rank);
      const Projection projection = projection_of(rank, dtype);
      const at::Tensor x = randn({kTotal, kInputs}, dtype), dy = randn({kTotal, kOutputs}, dtype);
      const Result found = run(projection, x, dy);
      const Result expected = merged(projection.weight_OI, projection.adapter, x, dy);
      EXPECT_LT(relative_error(found.y, expected.y), tolerance);
      EXPECT_LT(relative_error(found.dx, expected.dx), tolerance);
      EXPECT_LT(relative_error(found.da, expected.da), tolerance);
      EXPECT_LT(relative_error(found.db, expected.db), tolerance);
      EXPECT_LT(relative_error(found.dweight, expected.dweight), tolerance);
    }
  }
}

// Of frozen float8 weights the input's gradient is a product in the compute dtype with exactly those weights, and so
// are the adapters' products. Forward the input of the weights' product is rounded, and that of the adapters' is not.
TEST_F(GroupsTest, AdaptersOfFloat8WeightsAreExact) {
  const bool cuda = test_device().is_cuda();
  const at::ScalarType dtype = cuda ? at::kBFloat16 : at::kFloat;
  Projection projection = projection_of(/*rank=*/8, dtype);
  const Float8Rows rows = float8_rows(projection.weight_OI);
  projection.weight_OI = rows.values_RC;
  projection.scale_O = rows.scale_R;
  const at::Tensor x = randn({kTotal, kInputs}, dtype), dy = randn({kTotal, kOutputs}, dtype);
  const Result found = run(projection, x, dy);
  const Result expected = merged(float8_to_float(rows), projection.adapter, x, dy);
  const double exact = cuda ? 1.5e-2 : 1e-5;
  EXPECT_LT(relative_error(found.dx, expected.dx), exact);
  EXPECT_LT(relative_error(found.da, expected.da), exact);
  EXPECT_LT(relative_error(found.db, expected.db), exact);
  EXPECT_LT(relative_error(found.y, expected.y), 0.1);
  const Projection plain{.weight_OI = rows.values_RC, .scale_O = rows.scale_R};
  const at::Tensor low = found.y - multiply_groups(plain, operand_of(plain, x), ends());
  const Result alone = merged(at::zeros_like(float8_to_float(rows)), projection.adapter, x, dy);
  EXPECT_LT(relative_error(low, alone.y), cuda ? 5e-2 : 1e-5);
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
