#include "trainer/step/loss_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace distill::trainer {
namespace {

constexpr int64_t kTokens = 10, kVocab = 23, kHidden = 6;

struct Result {
  at::Tensor metrics_MN, dhidden_NH, dweight_VH;
};

class LossHeadTest : public testing::Test {
 protected:
  static at::Tensor randn(at::IntArrayRef sizes) {
    return at::randn(sizes, at::kDouble);
  }

  LossHeadTest() {
    at::manual_seed(3);
    hidden_NH_ = randn({kTokens, kHidden});
    weight_VH_ = randn({kVocab, kHidden});
    targets_N_ = at::randint(0, kVocab, {kTokens}, at::kLong);
    targets_N_.slice(0, 0, kTokens, 4).fill_(losses::kIgnoreIndex);
  }

  // For the tokens [begin, begin + count).
  Prediction prediction(const at::Tensor& teacher_NG, const at::Tensor& lm_head_VG, int64_t begin, int64_t count) {
    Prediction part{.tokens = count};
    part.head.targets_N = targets_N_.narrow(0, begin, count);
    part.head.teacher_hidden_NG = teacher_NG.narrow(0, begin, count);
    part.head.teacher_weight_VG = lm_head_VG;
    return part;
  }

  Result run(std::vector<Prediction> predictions, const at::Tensor& hidden_NH) {
    losses::LossOptions loss;
    loss.hard_weight = 0.5;
    Result result{{}, at::empty_like(hidden_NH), at::full_like(weight_VH_, 7.0)};
    losses::LinearHeadGrads grads;
    grads.hidden_NH = result.dhidden_NH;
    grads.weight_VH = result.dweight_VH;
    grads.accumulate = false;
    result.metrics_MN = run_loss_head(predictions, hidden_NH, weight_VH_, loss, {}, &grads);
    return result;
  }

  static void expect_near(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(at::allclose(actual, expected, 1e-10, 1e-12, /*equal_nan=*/true));
  }

  at::Tensor hidden_NH_, weight_VH_, targets_N_;
};

TEST_F(LossHeadTest, PartsOfOneTeacherAreTheWhole) {
  const at::Tensor teacher_NG = randn({kTokens, 8}), lm_head_VG = randn({kVocab, 8});
  const Result whole = run({prediction(teacher_NG, lm_head_VG, 0, kTokens)}, hidden_NH_);
  const Result parts =
      run({prediction(teacher_NG, lm_head_VG, 0, 3), prediction(teacher_NG, lm_head_VG, 3, kTokens - 3)}, hidden_NH_);
  expect_near(parts.metrics_MN, whole.metrics_MN);
  expect_near(parts.dhidden_NH, whole.dhidden_NH);
  expect_near(parts.dweight_VH, whole.dweight_VH);
}

TEST_F(LossHeadTest, PredictionsOfTwoTeachersAreThoseOfTwoRunsOnTheirTokens) {
  const at::Tensor narrow_NG = randn({kTokens, 4}), narrow_VG = randn({kVocab, 4});
  const at::Tensor wide_NG = randn({kTokens, 8}), wide_VG = randn({kVocab + 2, 8});
  const Prediction first = prediction(narrow_NG, narrow_VG, 0, 4), second = prediction(wide_NG, wide_VG, 4, 6);
  const Result both = run({first, second}, hidden_NH_);
  const Result a = run({first}, hidden_NH_.narrow(0, 0, 4)), b = run({second}, hidden_NH_.narrow(0, 4, 6));
  expect_near(both.metrics_MN, at::cat({a.metrics_MN, b.metrics_MN}, 1));
  expect_near(both.dhidden_NH, at::cat({a.dhidden_NH, b.dhidden_NH}));
  expect_near(both.dweight_VH, a.dweight_VH + b.dweight_VH);
}

} // namespace
} // namespace distill::trainer
