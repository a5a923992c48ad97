// The ops that are one kernel on CUDA: widths around the vector size and beyond what a block holds, rows beyond 65535,
// strided views, every dtype, sums that repeat bit for bit.
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/models/ops/glu.h"
#include "trainer/models/ops/rms_norm.h"
#include "trainer/models/ops/rope.h"

namespace distill::models {
namespace {

constexpr double kEps = 1e-5;

class FusedOpsTest : public DeviceTest {
 protected:
  static std::vector<at::ScalarType> dtypes() {
    return {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
  }

  // The result is rounded once. The tolerance is relative to the largest element.
  static double tolerance(at::ScalarType dtype) {
    switch (dtype) {
      case at::kDouble:
        return 1e-11;
      case at::kFloat:
        return 1e-5;
      case at::kHalf:
        return 1e-3;
      default:
        return 5e-3;
    }
  }
  // This is the tolerance of sums in the gradient's dtype.
  static double sum_tolerance(at::ScalarType dtype) {
    return dtype == at::kDouble ? 1e-12 : 1e-5;
  }
  static at::TensorOptions gradient_options(at::ScalarType dtype) {
    return options(dtype == at::kDouble ? at::kDouble : at::kFloat);
  }

  // Large tensors are drawn where they are used.
  static at::Tensor large_randn(at::IntArrayRef shape, at::ScalarType dtype) {
    return at::randn(shape, options(at::kFloat)).to(dtype);
  }

  static void check_norm(int64_t rows, int64_t width, at::ScalarType dtype, double offset = 0) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width << " " << at::toString(dtype) << ", offset " << offset);
    const at::Tensor x = large_randn({rows, width}, dtype);
    const at::Tensor weight = large_randn({width}, dtype);
    const at::Tensor dy = large_randn({rows, width}, dtype);
    const at::Tensor residual = large_randn({rows, width}, dtype);
    const at::Tensor x64 = leaf(x.to(at::kDouble));
    const at::Tensor weight64 = leaf(weight.to(at::kDouble));
    const at::Tensor expected_y = reference_rms_norm(x64, weight64, kEps, offset);
    const auto expected = reference_gradients(expected_y, dy.to(at::kDouble), {x64, weight64});

    const RmsNormResult result = rms_norm_forward(x, weight, kEps, offset);
    at::Tensor grad = at::ones({width}, gradient_options(dtype));
    const at::Tensor dx = rms_norm_backward(dy, x, result.rstd_N, weight, grad, residual, offset);
    EXPECT_LT(relative_error(result.y_NH, expected_y), tolerance(dtype));
    EXPECT_TRUE(at::equal(rms_norm_apply(x, result.rstd_N, weight, offset), result.y_NH));
    EXPECT_LT(relative_error(dx, expected[0] + residual.to(at::kDouble), 1.0), tolerance(dtype));
    EXPECT_LT(relative_error(grad, expected[1] + 1, std::sqrt(static_cast<double>(rows))), sum_tolerance(dtype));

    at::Tensor again = at::ones({width}, gradient_options(dtype));
    EXPECT_TRUE(at::equal(rms_norm_backward(dy, x, result.rstd_N, weight, again, residual, offset), dx));
    EXPECT_TRUE(at::equal(again, grad));
    at::Tensor unwanted;
    EXPECT_LT(
        relative_error(rms_norm_backward(dy, x, result.rstd_N, weight, unwanted, {}, offset), expected[0], 1.0),
        tolerance(dtype));

    at::Tensor sum = x.clone();
    const RmsNormResult added = add_rms_norm_forward_(sum, residual, weight, kEps, offset);
    EXPECT_TRUE(at::equal(sum, x + residual));
    EXPECT_TRUE(at::equal(added.y_NH, rms_norm_forward(sum, weight, kEps, offset).y_NH));
    EXPECT_TRUE(at::equal(rms_norm_apply(sum, added.rstd_N, weight, offset), added.y_NH));
  }
};

TEST_F(FusedOpsTest, RmsNormOfAnyWidth) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const int64_t width : {1, 3, 8, 24, 100, 129, 576, 1000, 2048, 4097}) {
      check_norm(37, width, dtype);
      check_norm(37, width, dtype, /*offset=*/1);
    }
  }
}

// These rows are longer than the threads of a block hold: 8192 bf16 elements, 512 or 1024 where 16-byte accesses do not
// fit.
TEST_F(FusedOpsTest, RmsNormOfVeryLongRows) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const int64_t width : {9001, 16384}) {
      check_norm(test_device().is_cuda() ? 701 : 5, width, dtype, /*offset=*/width == 16384 ? 1 : 0);
    }
  }
}

TEST_F(FusedOpsTest, RmsNormOfManyRows) {
  const bool cuda = test_device().is_cuda();
  check_norm(cuda ? 70001 : 301, 40, at::kBFloat16);
  check_norm(cuda ? 70001 : 301, 128, at::kBFloat16);
  check_norm(cuda ? 8192 : 64, 4096, at::kBFloat16);
}

// A slice of a flat buffer that starts between two 16-byte addresses, and rows with gaps.
TEST_F(FusedOpsTest, RmsNormOfUnalignedAndStridedInputs) {
  for (const at::ScalarType dtype : dtypes()) {
    const at::Tensor flat = randn({1 + 9 * 64}, dtype);
    const at::Tensor weights = randn({1 + 64}, dtype);
    const at::Tensor wide = randn({9, 200}, dtype);
    const at::Tensor weight = weights.narrow(0, 1, 64);
    for (const at::Tensor& x : {flat.narrow(0, 1, 9 * 64).view({9, 64}), wide.narrow(1, 3, 64)}) {
      const at::Tensor x64 = leaf(x.to(at::kDouble));
      const at::Tensor expected_y = reference_rms_norm(x64, weight.to(at::kDouble), kEps);
      const RmsNormResult result = rms_norm_forward(x, weight, kEps);
      EXPECT_LT(relative_error(result.y_NH, expected_y), tolerance(dtype));
      at::Tensor grads = at::zeros({1 + 64}, gradient_options(dtype));
      at::Tensor grad = grads.narrow(0, 1, 64);
      const at::Tensor dx = rms_norm_backward(x, x, result.rstd_N, weight, grad);
      EXPECT_LT(
          relative_error(dx, reference_gradients(expected_y, x.to(at::kDouble), {x64})[0], 1.0), tolerance(dtype));
      EXPECT_EQ(grads[0].item<double>(), 0.0);
    }
  }
}

struct HeadShape {
  int64_t tokens, heads, kv_heads, head_dim;
  int64_t rotated = -1; // elements of a head; -1: all
  bool scales_queries = false;
};

class FusedHeadsTest : public FusedOpsTest {
 protected:
  static std::vector<HeadShape> shapes() {
    return {{7, 4, 2, 128},          {5, 9, 3, 64},           {3, 5, 1, 80},   {11, 3, 1, 6},
            {2, 2, 2, 20},           {3, 2, 1, 512},          {1, 70, 8, 16},  {7, 4, 2, 128, 96},
            {3, 5, 1, 80, 12, true}, {5, 3, 1, 64, 64, true}, {5, 3, 1, 64, 0}};
  }

  struct Case {
    at::Tensor fused, q, k, v;
    RopeAngles angles;
  };
  static Case make_case(const HeadShape& s, at::ScalarType dtype) {
    Case c;
    c.fused = randn({s.tokens, (s.heads + 2 * s.kv_heads) * s.head_dim}, dtype);
    const auto parts = split(c.fused, s);
    c.q = parts[0];
    c.k = parts[1];
    c.v = parts[2];
    const at::Tensor angle = randn({s.tokens, (s.rotated < 0 ? s.head_dim : s.rotated) / 2}, at::kFloat);
    if (s.rotated != 0) {
      c.angles = {angle.cos(), angle.sin(), s.scales_queries ? randn({s.tokens}, at::kFloat) : at::Tensor()};
    }
    return c;
  }
  // q after its rotation, or k without `scales`.
  static at::Tensor rotated(const at::Tensor& x, const RopeAngles& angles, bool scales) {
    at::Tensor y =
        angles.cos_NR.defined() ? reference_rope(x.to(at::kDouble), angles.cos_NR, angles.sin_NR) : x.to(at::kDouble);
    return scales && angles.query_scale_N.defined() ? y * angles.query_scale_N.to(at::kDouble).view({-1, 1, 1}) : y;
  }
  static std::vector<at::Tensor> split(const at::Tensor& fused, const HeadShape& s) {
    return fused.unflatten(1, {s.heads + 2 * s.kv_heads, s.head_dim})
        .split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 1);
  }
};

TEST_F(FusedHeadsTest, RopeTurnsQueriesAndKeysOfOneBuffer) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const HeadShape& shape : shapes()) {
      SCOPED_TRACE(testing::Message() << shape.head_dim << " " << at::toString(dtype));
      Case c = make_case(shape, dtype);
      const at::Tensor before = c.fused.clone();
      const auto original = split(before, shape);
      rope_forward_(c.q, c.k, c.angles);
      const double bound = tolerance(dtype) * (shape.scales_queries ? 2 : 1); // the CPU rounds once more
      EXPECT_LT(relative_error(c.q, rotated(original[0], c.angles, /*scales=*/true)), bound);
      EXPECT_LT(relative_error(c.k, rotated(original[1], c.angles, /*scales=*/false)), tolerance(dtype));
      EXPECT_TRUE(at::equal(c.v, original[2]));
      // The parts are copied from buffers of their own into one that is shared.
      const at::Tensor elsewhere = at::full_like(c.fused, 7);
      auto parts = split(elsewhere, shape);
      rope_backward(c.q.contiguous(), c.k.contiguous(), parts[0], parts[1], c.angles);
      rope_backward_(c.q, c.k, c.angles);
      EXPECT_TRUE(at::equal(parts[0], c.q));
      EXPECT_TRUE(at::equal(parts[1], c.k));
      EXPECT_TRUE(at::equal(parts[2], at::full_like(parts[2], 7)));
      if (!shape.scales_queries) { // the angles are fp32
        EXPECT_LT(relative_error(c.fused, before), std::max(2 * tolerance(dtype), 1e-6));
      }
      EXPECT_TRUE(at::equal(c.v, original[2]));
    }
  }
}

TEST_F(FusedHeadsTest, NormThenRope) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const HeadShape& shape : shapes()) {
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.head_dim << " " << at::toString(dtype) << ", whole " << whole);
        const Case c = make_case(shape, dtype);
        const at::Tensor before = c.fused.clone();
        const at::Tensor q_norm = randn({shape.head_dim * (whole ? shape.heads : 1)}, dtype);
        const at::Tensor k_norm = randn({shape.head_dim * (whole ? shape.kv_heads : 1)}, dtype);
        const double offset = shape.heads == 4 ? 1 : 0;
        const NormRopeResult result = norm_rope_forward(c.q, c.k, q_norm, k_norm, kEps, c.angles, offset);
        const auto expected = [&](const at::Tensor& x_NAD, const at::Tensor& weight, bool scales) {
          const at::Tensor x = (whole ? x_NAD.flatten(1) : x_NAD).to(at::kDouble);
          const at::Tensor y = reference_rms_norm(x, weight.to(at::kDouble), kEps, offset);
          return rotated(y.view(x_NAD.sizes()), c.angles, scales);
        };
        EXPECT_LT(relative_error(result.q_NAD, expected(c.q, q_norm, true)), 3 * tolerance(dtype));
        EXPECT_LT(relative_error(result.k_NKD, expected(c.k, k_norm, false)), 2 * tolerance(dtype));
        const at::Tensor squares = c.k.to(at::kDouble).square();
        const at::Tensor mean = whole ? squares.mean({1, 2}) : squares.mean(-1);
        EXPECT_LT(relative_error(result.k_rstd, at::rsqrt(mean + kEps).reshape({-1})), 1e-6);
        EXPECT_EQ(result.q_rstd.numel(), shape.tokens * (whole ? 1 : shape.heads));
        EXPECT_TRUE(at::equal(c.fused, before));
        EXPECT_TRUE(at::equal(norm_rope_forward(c.q, c.k, q_norm, k_norm, kEps, c.angles, offset).q_NAD, result.q_NAD));
      }
    }
  }
}

TEST_F(FusedHeadsTest, NormBackwardInPlaceOnHeads) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const HeadShape& shape : shapes()) {
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.head_dim << " " << at::toString(dtype) << ", whole " << whole);
        const Case c = make_case(shape, dtype);
        at::Tensor dfused = randn(c.fused.sizes(), dtype);
        const at::Tensor before = dfused.clone();
        auto gradients = split(dfused, shape);
        const int64_t size = shape.head_dim * (whole ? shape.heads : 1);
        const double offset = shape.heads == 4 ? 1 : 0;
        const at::Tensor weight = randn({size}, dtype);
        const at::Tensor x64 = leaf(c.q.to(at::kDouble).reshape({-1, size}));
        const at::Tensor weight64 = leaf(weight.to(at::kDouble));
        const auto expected = reference_gradients(
            reference_rms_norm(x64, weight64, kEps, offset), gradients[0].to(at::kDouble).reshape({-1, size}),
            {x64, weight64});
        const at::Tensor rstd = rms_norm_forward(c.q.reshape({-1, size}), weight, kEps).rstd_N;
        at::Tensor grad = at::ones({size}, gradient_options(dtype));
        head_rms_norm_backward_(gradients[0], c.q, rstd, weight, grad, offset);
        EXPECT_LT(relative_error(gradients[0].reshape({-1, size}), expected[0]), 2 * tolerance(dtype));
        EXPECT_LT(relative_error(grad, expected[1] + 1), sum_tolerance(dtype));
        const auto untouched = split(before, shape);
        EXPECT_TRUE(at::equal(gradients[1], untouched[1]));
        EXPECT_TRUE(at::equal(gradients[2], untouched[2]));
      }
    }
  }
}

TEST_F(FusedOpsTest, GluOfAnyWidth) {
  const bool cuda = test_device().is_cuda();
  for (const at::ScalarType dtype : dtypes()) {
    for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {5, 7}, {9, 24}, {33, 1000}, {3, 8200}, {2, 5001}, {cuda ? 70001 : 300, 8}}) {
      for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGlu}) {
        SCOPED_TRACE(
            testing::Message() << rows << " x " << width << " " << at::toString(dtype) << " "
                               << base::enum_name(activation));
        at::Tensor gate_up = large_randn({rows, 2 * width}, dtype).mul_(4);
        at::Tensor dact = large_randn({rows, width}, dtype);
        const at::Tensor gate_up64 = leaf(gate_up.to(at::kDouble));
        const at::Tensor expected_act = reference_glu(gate_up64, activation);
        const at::Tensor expected = reference_gradients(expected_act, dact.to(at::kDouble), {gate_up64})[0];
        // ATen on the CPU rounds more often than once.
        const double bound = tolerance(dtype) * (cuda ? 1 : 2);
        const at::Tensor act = glu_forward(gate_up, activation);
        EXPECT_LT(relative_error(act, expected_act), bound);
        glu_backward_(dact, gate_up, activation, /*needs_act=*/true);
        EXPECT_LT(relative_error(gate_up, expected), bound);
        EXPECT_TRUE(at::equal(dact, act));
      }
    }
  }
}

TEST_F(FusedOpsTest, GluOfExtremeGates) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const Activation activation : {Activation::kSwiGlu, Activation::kGeGlu}) {
      const at::Tensor gate = at::tensor({-6e4, -200.0, -90.0, -20.0, 0.0, 20.0, 90.0, 6e4}, options()).to(dtype);
      at::Tensor gate_up = at::stack({gate, at::ones_like(gate)}, 0).reshape({1, 16});
      at::Tensor dact = at::ones({1, 8}, options(dtype));
      const at::Tensor gate_up64 = gate_up.to(at::kDouble);
      EXPECT_LT(
          relative_error(glu_forward(gate_up, activation), reference_glu(gate_up64, activation)), tolerance(dtype));
      glu_backward_(dact, gate_up, activation, /*needs_act=*/false);
      EXPECT_TRUE(gate_up.isfinite().all().item<bool>());
      const at::Tensor dgate = gate_up.narrow(1, 0, 8).to(at::kDouble);
      EXPECT_LT(dgate.narrow(1, 0, 3).abs().max().item<double>(), 1e-30);
      EXPECT_LT((dgate.narrow(1, 6, 2) - 1).abs().max().item<double>(), 1e-6);
    }
  }
}

// Runs of one token from 1 to thousands, rows wider than a block, a gradient with gaps between rows.
TEST_F(FusedOpsTest, EmbeddingGradientOfLongRuns) {
  for (const at::ScalarType dtype : dtypes()) {
    for (const int64_t width : {5, 24, 1100}) {
      const at::Tensor tokens =
          at::cat({at::randint(0, 40, {700}, at::kLong), at::full({1500}, 7, at::kLong)}).to(test_device());
      const at::Tensor dx = large_randn({2200, width}, dtype);
      at::Tensor storage = at::ones({50, width + 3}, gradient_options(dtype));
      at::Tensor grad = storage.narrow(1, 0, width);
      at::Tensor expected = at::ones({50, width}, options());
      expected.index_put_({tokens}, dx.to(at::kDouble), /*accumulate=*/true);
      embedding_backward(tokens, dx, grad);
      EXPECT_LT(relative_error(grad, expected), sum_tolerance(dtype));
      EXPECT_TRUE(storage.narrow(1, width, 3).eq(1).all().item<bool>());
    }
  }
}

} // namespace
} // namespace distill::models
