// The backward pass from the numbers that the forward pass saved, against the reference's gradient.
#include <gtest/gtest.h>

#include "losses/logits/logits_loss.h"
#include "tests/losses/cases.h"
#include "tests/losses/reference.h"

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

// In fp64.
at::Tensor reference_gradient(
    const Logits& in, const at::Tensor& teacher_NV, const at::Tensor& targets_N, const LossOptions& options) {
  const at::Tensor student = in.logits_NV.to(at::kDouble);
  const at::Tensor teacher = teacher_NV.defined() ? teacher_NV.to(at::kDouble) : at::Tensor();
  const at::Tensor scale = in.scale_N.to(at::kDouble);
  const at::Tensor metrics = at::empty({kNumTokenMetrics, student.size(0)}, student.options());
  at::Tensor gradient = at::empty_like(student);
  RowArgs args;
  args.student = student.data_ptr();
  args.teacher = teacher.defined() ? teacher.data_ptr() : nullptr;
  args.gradient = gradient.data_ptr();
  args.student_stride = args.teacher_stride = args.gradient_stride = student.size(1);
  args.logits_type = args.gradient_type = ElementType::kFloat64;
  args.targets = targets_N.defined() ? targets_N.const_data_ptr<int64_t>() : nullptr;
  args.token_weights = scale.data_ptr();
  args.metrics = metrics.data_ptr();
  args.metrics_stride = args.num_rows = student.size(0);
  args.vocab = student.size(1);
  args.options = options;
  reference_rows(args, student.device());
  return gradient;
}

class LogitsBackward : public ::testing::TestWithParam<std::tuple<at::ScalarType, int64_t, Divergence>> {};

TEST_P(LogitsBackward, IsTheReferencesGradient) {
  const auto [dtype, vocab, divergence] = GetParam();
  const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-5 : 5e-3;
  const bool with_teacher = divergence != Divergence::kNone;
  LossOptions plain{.divergence = divergence};
  if (!with_teacher) {
    plain.hard_weight = 1;
    plain.soft_weight = 0;
  }
  LossOptions all = plain;
  all.hard_weight = 0.7;
  all.soft_weight = 0.6;
  all.label_smoothing = 0.2;
  all.z_loss = 0.05;
  all.student_softcap = 6;
  if (with_teacher) {
    all.temperature = 1.7;
    all.teacher_softcap = 9;
  }
  const Logits in = make_logits(9, vocab, dtype);
  const at::Tensor teacher = with_teacher ? in.logits_NV + at::randn_like(in.logits_NV) : at::Tensor();
  for (const LossOptions& options : {plain, all}) {
    const at::Tensor targets = options.hard_weight > 0 ? in.targets_N : at::Tensor();
    const at::Tensor expected = reference_gradient(in, teacher, targets, options);
    const at::Tensor saved = at::full({kNumSavedValues, 9}, NAN, in.scale_N.options());
    const at::Tensor metrics = logits_loss({in.logits_NV, teacher, targets, {}}, options, {}, {}, saved);
    const at::Tensor gradient = at::full_like(in.logits_NV, NAN);
    logits_backward({in.logits_NV, teacher, targets, in.scale_N}, options, saved, gradient);
    // Total variation's gradient jumps where p = q: rounding may decide a column, and the only one there is.
    const bool jumps = divergence == Divergence::kTotalVariation;
    if (!jumps || vocab > 1) {
      EXPECT_LT(relative_error(gradient, expected), jumps ? 0.05 : tolerance);
    }
    const at::Tensor valid = targets.defined() ? targets.ne(kIgnoreIndex) : at::ones({9}, in.targets_N.options()).gt(0);
    const at::Tensor lse = saved[kSavedStudentMax] + saved[kSavedStudentUnitLog2Sum] * std::log(2.0);
    EXPECT_LT(relative_error(lse.index({valid}), metrics[kStudentLse].index({valid})), 1e-6);
    EXPECT_EQ(gradient[0].abs().max().item<double>(), 0) << "a token of weight 0";
    if (with_teacher && targets.defined()) {
      const at::Tensor capped = (teacher.to(at::kDouble) / options.teacher_softcap).tanh() * options.teacher_softcap;
      const at::Tensor ce = -capped.log_softmax(1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
      EXPECT_LT(relative_error(metrics[kTeacherCe], at::where(valid, ce, at::zeros_like(ce))), 1e-5);
    }
    // In place, and on rows that are wider than the vocabulary.
    const at::Tensor wide = at::zeros({9, vocab + 7}, in.logits_NV.options());
    const at::Tensor view = wide.narrow(1, 0, vocab);
    view.copy_(in.logits_NV);
    logits_backward({view, teacher, targets, in.scale_N}, options, saved, view);
    EXPECT_TRUE(at::equal(view, gradient));
    EXPECT_EQ(wide.narrow(1, vocab, 7).abs().max().item<double>(), 0) << "wrote beyond the row";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, LogitsBackward,
    ::testing::Combine(
        ::testing::Values(at::kFloat, at::kBFloat16, at::kDouble), ::testing::Values(1, 7, 8197, 32000),
        ::testing::Values(
            Divergence::kNone, Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl,
            Divergence::kSkewForwardKl, Divergence::kSkewReverseKl, Divergence::kTotalVariation)));

TEST(LogitsBackward, AnInfiniteLogitIsNaNInItsRowAlone) {
  const LossOptions hard{.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0};
  Logits in = make_logits(5, 33, at::kFloat);
  in.targets_N.fill_(3);
  in.scale_N.fill_(1);
  in.logits_NV[2][7] = INFINITY;
  in.logits_NV[3][7] = -INFINITY;
  const at::Tensor saved = at::empty({kNumSavedValues, 5}, in.scale_N.options());
  logits_loss({in.logits_NV, {}, in.targets_N, {}}, hard, {}, {}, saved);
  const at::Tensor gradient = at::empty_like(in.logits_NV);
  logits_backward({in.logits_NV, {}, in.targets_N, in.scale_N}, hard, saved, gradient);
  EXPECT_TRUE(at::isnan(gradient[2]).all().item<bool>());
  EXPECT_EQ(at::isnan(gradient).sum().item<int64_t>(), 33);
  EXPECT_EQ(gradient[3][7].item<float>(), 0);
}

TEST(LogitsBackward, MistakesNameTheTensor) {
  const Logits in = make_logits(5, 33, at::kFloat);
  const at::Tensor gradient = at::empty_like(in.logits_NV);
  const at::Tensor saved = at::zeros({kNumSavedValues, 5}, in.scale_N.options());
  const LossOptions options{.divergence = Divergence::kJsd};
  EXPECT_THROW(logits_backward({in.logits_NV, {}, {}, in.scale_N}, options, saved, gradient), c10::Error);
  EXPECT_THROW(
      logits_backward({in.logits_NV, in.logits_NV, {}, in.scale_N.to(at::kDouble)}, options, saved, gradient),
      c10::Error);
  EXPECT_THROW(
      logits_backward({in.logits_NV, in.logits_NV, {}, in.scale_N}, options, saved, gradient.to(at::kDouble)),
      c10::Error);
  EXPECT_THROW(logits_loss({in.logits_NV, in.logits_NV, {}, {}}, options, {}, {}, saved.narrow(1, 0, 4)), c10::Error);
}

} // namespace
} // namespace distill::losses::testing
