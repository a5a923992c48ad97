// The backward of cross-entropy from saved log-sum-exps against the gradient that the row kernel makes.
#include <gtest/gtest.h>

#include "losses/logits_loss.h"
#include "tests/losses/cases.h"

namespace distill::losses::testing {
namespace {

struct Logits {
  at::Tensor logits_NV;
  at::Tensor targets_N;
  at::Tensor scale_N;
};

Logits make_logits(int64_t tokens, int64_t vocab, at::ScalarType dtype) {
  const LinearHeadInputs in =
      make_problem({.tokens = tokens, .vocab = vocab, .teacher_hidden = 0, .token_weights = true});
  const at::ScalarType compute = dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor scale = in.token_weights_N.to(compute);
  scale.narrow(0, 0, 1).zero_();
  scale.narrow(0, tokens - 1, 1).neg_();
  return {at::matmul(in.hidden_NH, in.weight_VH.t()).to(dtype), in.targets_N, scale};
}

struct Expected {
  at::Tensor lse_N;
  at::Tensor gradient_NV;
};

Expected row_kernel(const Logits& in, const LossOptions& options) {
  Expected out;
  out.lse_N = logits_loss({in.logits_NV, {}, in.targets_N, {}}, options)[kStudentLse];
  out.gradient_NV = at::empty_like(in.logits_NV);
  logits_loss({in.logits_NV, {}, in.targets_N, in.scale_N}, options, out.gradient_NV);
  return out;
}

std::vector<LossOptions> hard_losses() {
  const LossOptions plain{.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0};
  LossOptions all = plain;
  all.hard_weight = 0.7;
  all.label_smoothing = 0.2;
  all.z_loss = 0.05;
  all.student_softcap = 6;
  return {plain, all};
}

class CrossEntropyBackward : public ::testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {};

TEST_P(CrossEntropyBackward, IsTheRowKernelsGradient) {
  const auto [dtype, vocab] = GetParam();
  const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 5e-6 : 1e-3;
  for (const LossOptions& options : hard_losses()) {
    const Logits in = make_logits(9, vocab, dtype);
    const Expected expected = row_kernel(in, options);
    const at::Tensor gradient = at::full_like(in.logits_NV, NAN);
    cross_entropy_backward(in.logits_NV, in.targets_N, expected.lse_N, in.scale_N, options, gradient);
    EXPECT_LT(relative_error(gradient, expected.gradient_NV), tolerance);
    EXPECT_EQ(gradient[0].abs().max().item<double>(), 0) << "a token of weight 0";
    // In place, and on rows that are wider than the vocabulary.
    const at::Tensor wide = at::zeros({9, vocab + 7}, in.logits_NV.options());
    const at::Tensor view = wide.narrow(1, 0, vocab);
    view.copy_(in.logits_NV);
    cross_entropy_backward(view, in.targets_N, expected.lse_N, in.scale_N, options, view);
    EXPECT_TRUE(at::equal(view, gradient));
    EXPECT_EQ(wide.narrow(1, vocab, 7).abs().max().item<double>(), 0) << "wrote beyond the row";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, CrossEntropyBackward,
    ::testing::Combine(
        ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble), ::testing::Values(1, 7, 64, 8197, 50257)));

TEST(CrossEntropyBackward, AnInfiniteLogitIsNaNInItsRowAlone) {
  Logits in = make_logits(5, 33, at::kFloat);
  in.targets_N.fill_(3);
  in.scale_N.fill_(1);
  in.logits_NV[2][7] = INFINITY;
  in.logits_NV[3][7] = -INFINITY;
  const LossOptions options = hard_losses()[0];
  const at::Tensor lse = logits_loss({in.logits_NV, {}, in.targets_N, {}}, options)[kStudentLse];
  const at::Tensor gradient = at::empty_like(in.logits_NV);
  cross_entropy_backward(in.logits_NV, in.targets_N, lse, in.scale_N, options, gradient);
  EXPECT_TRUE(at::isnan(gradient[2]).all().item<bool>());
  EXPECT_EQ(at::isnan(gradient).sum().item<int64_t>(), 33);
  EXPECT_EQ(gradient[3][7].item<float>(), 0);
}

TEST(CrossEntropyBackward, MistakesNameTheTensor) {
  const Logits in = make_logits(5, 33, at::kFloat);
  const at::Tensor lse = at::zeros({5}, in.scale_N.options());
  const at::Tensor gradient = at::empty_like(in.logits_NV);
  const LossOptions options = hard_losses()[0];
  EXPECT_THROW(
      cross_entropy_backward(in.logits_NV, in.targets_N, lse.narrow(0, 0, 4), in.scale_N, options, gradient),
      c10::Error);
  EXPECT_THROW(
      cross_entropy_backward(in.logits_NV, in.targets_N, lse, in.scale_N.to(at::kDouble), options, gradient),
      c10::Error);
  EXPECT_THROW(
      cross_entropy_backward(in.logits_NV, in.targets_N, lse, in.scale_N, options, gradient.to(at::kBFloat16)),
      c10::Error);
}

} // namespace
} // namespace distill::losses::testing
