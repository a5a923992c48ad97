// Exactness: what rounding, extreme logits and small gaps may not do.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/cases.h"
#include "tests/losses/naive.h"

namespace distill::losses::testing {
namespace {

const std::vector<Divergence> kDivergences{Divergence::kJsd,           Divergence::kForwardKl,
                                           Divergence::kReverseKl,     Divergence::kSkewForwardKl,
                                           Divergence::kSkewReverseKl, Divergence::kTotalVariation};

double max_abs(const at::Tensor& tensor) {
  return tensor.abs().max().item<double>();
}

bool finite(const at::Tensor& tensor) {
  return at::isfinite(tensor).all().item<bool>();
}

// Logits that are given: hidden states are rows of the identity, the lm_head holds the logits.
LinearHeadInputs from_logits(const at::Tensor& student_NV, const at::Tensor& teacher_NV, const at::Tensor& targets_N) {
  LinearHeadInputs in;
  in.hidden_NH = at::eye(student_NV.size(0), at::TensorOptions(student_NV.scalar_type())).to(test_device());
  in.weight_VH = student_NV.t().contiguous().to(test_device());
  in.teacher_hidden_NG = in.hidden_NH;
  in.teacher_weight_VG = teacher_NV.t().contiguous().to(test_device());
  in.targets_N = targets_N.to(test_device());
  return in;
}

TEST(Exactness, IdenticalModelsGiveZeroLossAndGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Divergence divergence : kDivergences) {
      for (const double beta : {0.0, 0.1, 0.3, 0.5, 0.77, 1.0}) {
        const LinearHeadInputs in =
            make_problem({.tokens = 9, .vocab = 1001, .gap = 0, .targets = false, .dtype = dtype});
        const HeadResult ours =
            run_head(in, {.divergence = divergence, .beta = beta, .skew_alpha = beta * 0.9, .temperature = 0.7});
        EXPECT_EQ(max_abs(ours.metrics_MN[kLoss]), 0) << dtype << ' ' << static_cast<int>(divergence) << ' ' << beta;
        EXPECT_EQ(max_abs(ours.metrics_MN[kForwardKl]), 0);
        EXPECT_EQ(max_abs(ours.metrics_MN[kReverseKl]), 0);
        EXPECT_EQ(max_abs(ours.grads.hidden_NH), 0) << dtype << ' ' << static_cast<int>(divergence) << ' ' << beta;
        EXPECT_EQ(max_abs(ours.grads.weight_VH), 0);
      }
    }
  }
}

TEST(Exactness, LossesAreNeverNegative) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Divergence divergence : kDivergences) {
      for (const double gap : {1e-7, 1e-5, 1e-3, 1e-1, 1.0}) {
        for (const double beta : {0.05, 0.5, 0.95}) {
          const LinearHeadInputs in =
              make_problem({.tokens = 8, .vocab = 500, .logit_scale = 6, .gap = gap, .targets = true, .dtype = dtype});
          const at::Tensor metrics =
              linear_head(in, {.divergence = divergence, .beta = beta, .hard_weight = 1}, {}, nullptr).metrics_MN;
          for (const TokenMetric metric :
               {kLoss, kHard, kSoft, kForwardKl, kReverseKl, kStudentEntropy, kTeacherEntropy, kTeacherCe}) {
            EXPECT_GE(metrics[metric].min().item<double>(), 0) << static_cast<int>(divergence) << " metric " << metric;
          }
        }
      }
    }
  }
}

// A comparison of the two is of the models alone.
TEST(Exactness, TheCrossEntropiesOfIdenticalModelsAreEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const double temperature : {1.0, 2.5}) {
      const LinearHeadInputs in = make_problem({.tokens = 33, .vocab = 4099, .gap = 0, .dtype = dtype});
      const HeadResult ours = run_head(in, {.temperature = temperature, .hard_weight = 1});
      EXPECT_LT(
          relative_error(ours.metrics_MN[kTeacherCe], ours.metrics_MN[kHard]), dtype == at::kDouble ? 1e-14 : 1e-6)
          << dtype << ' ' << temperature;
      EXPECT_GT(ours.metrics_MN[kTeacherCe].max().item<double>(), 1);
    }
  }
}

// The logits of a sure model are large: their difference comes first, so that it keeps its digits.
TEST(Exactness, TheTeachersCrossEntropyKeepsItsDigitsAtLargeLogits) {
  const at::Tensor student = at::randn({16, 4099}, at::TensorOptions(at::kFloat));
  const at::Tensor teacher = student * 3 + 4096; // exact to 2^-11
  const at::Tensor labels = teacher.argmax(1);
  const LinearHeadInputs in = from_logits(student, teacher, labels);
  const at::Tensor expected = naive_head(in, {.hard_weight = 1}).teacher_ce_N;
  const at::Tensor found = run_head(in, {.hard_weight = 1}).metrics_MN[kTeacherCe];
  EXPECT_LT(relative_error(found, expected), 1e-6);
}

TEST(Exactness, HardLossOfACertainLabelIsNotNegative) {
  at::Tensor logits = at::randn({64, 777}, at::TensorOptions(at::kFloat));
  const at::Tensor labels = at::arange(64, at::TensorOptions(at::kLong));
  logits.scatter_(1, labels.unsqueeze(1), 37.3F);
  const LinearHeadInputs in = from_logits(logits, logits, labels);
  const at::Tensor metrics = linear_head(in, {.hard_weight = 1}, {}, nullptr).metrics_MN;
  EXPECT_GE(metrics[kHard].min().item<double>(), 0);
}

// bf16 inputs, gradient in fp32 of the same bf16 numbers: what remains is one rounding of the gradient to bf16.
TEST(Exactness, GradientAtSmallGapsIsGoodWithBf16Inputs) {
  for (const Divergence divergence : kDivergences) {
    for (const double gap : {0.3, 0.1, 0.03}) {
      const LinearHeadInputs in = make_problem(
          {.tokens = 32, .vocab = 2003, .hidden = 64, .gap = gap, .targets = false, .dtype = at::kBFloat16});
      const HeadResult ours = run_head(in, {.divergence = divergence});
      const NaiveResult naive = naive_head(in, {.divergence = divergence});
      EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 5e-3)
          << static_cast<int>(divergence) << ' ' << gap;
      EXPECT_LT(relative_error(ours.grads.hidden_NH, naive.d_hidden_NH), 5e-3)
          << static_cast<int>(divergence) << ' ' << gap;
      EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-3)
          << static_cast<int>(divergence) << ' ' << gap;
    }
  }
}

// The rule for every kernel here: at most twice the error of the plain computation with fp32 logits.
TEST(Exactness, ErrorsAreWithinTwiceThoseOfThePlainFp32Computation) {
  for (const Divergence divergence : kDivergences) {
    for (const double temperature : {1.0, 2.0, 0.3}) {
      for (const double gap : {1.0, 0.3, 0.03, 0.003}) {
        const LossOptions options{.divergence = divergence, .temperature = temperature};
        const LinearHeadInputs in = make_problem(
            {.tokens = 16, .vocab = 1003, .hidden = 64, .gap = gap, .targets = false, .dtype = at::kFloat});
        const HeadResult ours = run_head(in, options);
        const NaiveResult naive = naive_head(in, options);
        const NaiveResult plain = naive_head(in, options, 1.0, at::kFloat);
        SCOPED_TRACE(::testing::Message() << static_cast<int>(divergence) << " T " << temperature << " gap " << gap);
        EXPECT_LT(
            relative_error(ours.metrics_MN[kSoft], naive.soft_N),
            1e-6 + 2 * relative_error(plain.soft_N, naive.soft_N));
        if (divergence == Divergence::kTotalVariation) {
          continue; // its gradient jumps where p = q: rounding decides some columns of either computation
        }
        EXPECT_LT(
            relative_error(ours.grads.weight_VH, naive.d_weight_VH),
            1e-6 + 2 * relative_error(plain.d_weight_VH, naive.d_weight_VH));
        EXPECT_LT(
            relative_error(ours.grads.hidden_NH, naive.d_hidden_NH),
            1e-6 + 2 * relative_error(plain.d_hidden_NH, naive.d_hidden_NH));
      }
    }
  }
}

TEST(Exactness, TinyGapsKeepTheirLossInFp32) {
  for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl}) {
    const LinearHeadInputs in =
        make_problem({.tokens = 64, .vocab = 2003, .hidden = 64, .gap = 0.01, .targets = false, .dtype = at::kFloat});
    const HeadResult ours = run_head(in, {.divergence = divergence});
    const NaiveResult naive = naive_head(in, {.divergence = divergence});
    EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-2) << static_cast<int>(divergence);
    EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 1e-3) << static_cast<int>(divergence);
  }
}

// p -> 1 at the label: p - 1 must be taken before the rounding to bf16.
TEST(Exactness, LabelColumnIsSubtractedBeforeRounding) {
  at::Tensor logits = at::zeros({4, 512}, at::TensorOptions(at::kBFloat16));
  const at::Tensor labels = at::tensor({3, 77, 200, 511}, at::TensorOptions(at::kLong));
  logits.scatter_(1, labels.unsqueeze(1), 13.0F); // p = 0.9989
  LinearHeadInputs in = from_logits(logits, logits, labels);
  in.teacher_hidden_NG = at::Tensor();
  in.teacher_weight_VG = at::Tensor();
  const LossOptions options{.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0};
  const HeadResult ours = run_head(in, options);
  const NaiveResult naive = naive_head(in, options);
  EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 5e-3);
}

// Many chunks: bf16 accumulation would lose everything below 1/256 of the sum.
TEST(Exactness, WeightGradientAccumulatesInFp32OverManyChunks) {
  const LinearHeadInputs in = make_problem({.tokens = 512, .vocab = 64, .ignored = 0, .dtype = at::kBFloat16});
  const NaiveResult naive = naive_head(in, {.hard_weight = 1});
  const HeadResult ours = run_head(in, {.hard_weight = 1}, {.chunk_size = 1, .memory_cap_mb = 1});
  EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 3e-3);
}

TEST(Extremes, FarApartLogitsStayFinite) {
  // Both log-probabilities below -104, where exp underflows in fp32, and differences of thousands of nats.
  at::Tensor student = at::full({3, 300}, -400.0, at::TensorOptions(at::kFloat));
  at::Tensor teacher = at::full({3, 300}, -500.0, at::TensorOptions(at::kFloat));
  student.select(1, 5).fill_(800.0);
  teacher.select(1, 7).fill_(900.0);
  student.narrow(1, 20, 50).fill_(-3000.0);
  const at::Tensor labels = at::tensor({5, 7, 100}, at::TensorOptions(at::kLong));
  for (const Divergence divergence : kDivergences) {
    for (const double temperature : {1.0, 0.05, 10.0}) {
      const LossOptions options{.divergence = divergence, .temperature = temperature, .hard_weight = 0.1};
      const LinearHeadInputs in = from_logits(student, teacher, labels);
      const HeadResult ours = run_head(in, options);
      const NaiveResult naive = naive_head(in, options);
      EXPECT_TRUE(finite(ours.metrics_MN)) << static_cast<int>(divergence) << " T " << temperature;
      EXPECT_TRUE(finite(ours.grads.weight_VH)) << static_cast<int>(divergence) << " T " << temperature;
      const NaiveResult plain = naive_head(in, options, 1.0, at::kFloat);
      EXPECT_LT(
          relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-5 + 2 * relative_error(plain.soft_N, naive.soft_N))
          << static_cast<int>(divergence);
      EXPECT_LT(
          relative_error(ours.grads.weight_VH, naive.d_weight_VH),
          1e-5 + 2 * relative_error(plain.d_weight_VH, naive.d_weight_VH))
          << static_cast<int>(divergence);
    }
  }
}

TEST(Extremes, LowTemperature) {
  for (const Divergence divergence : kDivergences) {
    const LossOptions options{.divergence = divergence, .temperature = 0.05, .hard_weight = 1};
    const LinearHeadInputs in = make_problem({.tokens = 20, .vocab = 501, .dtype = at::kFloat});
    const HeadResult ours = run_head(in, options);
    const NaiveResult naive = naive_head(in, options);
    EXPECT_TRUE(finite(ours.metrics_MN));
    EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-4) << static_cast<int>(divergence);
    EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 1e-3) << static_cast<int>(divergence);
  }
}

// -inf logits (masked tokens) on both sides, the student only, or the teacher only.
TEST(Extremes, MinusInfinityLogits) {
  const double inf = INFINITY;
  const at::Tensor base = at::randn({2, 40}, at::TensorOptions(at::kFloat));
  const at::Tensor labels = at::tensor({5, 7}, at::TensorOptions(at::kLong));
  const auto masked = [&](bool student_masked, bool teacher_masked) {
    at::Tensor student = base.clone();
    at::Tensor teacher = base.flip(1).clone();
    if (student_masked) {
      student.narrow(1, 10, 4).fill_(-inf);
    }
    if (teacher_masked) {
      teacher.narrow(1, 10, 4).fill_(-inf);
    }
    // The product of a matrix holding -inf with rows of the identity is NaN: the masks come in as biases.
    LinearHeadInputs in = from_logits(at::zeros_like(student), at::zeros_like(teacher), labels);
    in.hidden_NH = in.hidden_NH.narrow(0, 0, 1);
    in.teacher_hidden_NG = in.hidden_NH;
    in.targets_N = in.targets_N.narrow(0, 0, 1);
    in.bias_V = student[0].to(test_device());
    in.teacher_bias_V = teacher[0].to(test_device());
    return in;
  };
  for (const Divergence divergence : kDivergences) {
    const LossOptions options{.divergence = divergence, .temperature = 1.3, .hard_weight = 0.5};
    for (const auto& [student_masked, teacher_masked] :
         {std::pair{true, true}, std::pair{false, true}, std::pair{true, false}}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(divergence) << student_masked << teacher_masked);
      const LinearHeadInputs in = masked(student_masked, teacher_masked);
      const HeadResult ours = run_head(in, options);
      EXPECT_FALSE(at::isnan(ours.metrics_MN).any().item<bool>());
      EXPECT_FALSE(at::isnan(ours.grads.bias_V).any().item<bool>());
      const double loss = ours.metrics_MN[kSoft][0].item<double>();
      const double forward = ours.metrics_MN[kForwardKl][0].item<double>();
      const double reverse = ours.metrics_MN[kReverseKl][0].item<double>();
      EXPECT_EQ(std::isinf(forward), student_masked && !teacher_masked);
      EXPECT_EQ(std::isinf(reverse), !student_masked && teacher_masked);
      if (divergence == Divergence::kJsd || divergence == Divergence::kTotalVariation) {
        EXPECT_TRUE(std::isfinite(loss));
      }
      if (student_masked == teacher_masked) {
        EXPECT_TRUE(std::isfinite(loss));
        EXPECT_EQ(max_abs(ours.grads.bias_V.narrow(0, 10, 4)), 0);
      }
    }
  }
}

TEST(Extremes, NanLogitsAreNotHidden) {
  LinearHeadInputs in = make_problem({.tokens = 4, .ignored = 0, .dtype = at::kFloat});
  in.hidden_NH[1][0] = NAN;
  for (const Divergence divergence : kDivergences) {
    const HeadResult ours = run_head(in, {.divergence = divergence, .hard_weight = 1});
    EXPECT_TRUE(std::isnan(ours.metrics_MN[kLoss][1].item<double>())) << static_cast<int>(divergence);
    EXPECT_TRUE(std::isnan(ours.metrics_MN[kTeacherCe][1].item<double>())) << static_cast<int>(divergence);
    EXPECT_TRUE(std::isfinite(ours.metrics_MN[kLoss][0].item<double>()));
    EXPECT_TRUE(at::isnan(ours.grads.hidden_NH[1]).all().item<bool>()) << static_cast<int>(divergence);
    EXPECT_TRUE(finite(ours.grads.hidden_NH[0]));
  }
}

// An ignored row costs nothing even where its numbers are broken.
TEST(Extremes, IgnoredRowsMayHoldAnything) {
  LinearHeadInputs in = make_problem({.tokens = 4, .ignored = 0, .dtype = at::kFloat});
  in.targets_N[1] = kIgnoreIndex;
  in.hidden_NH[1][0] = 1e30;
  in.valid_tokens = 3;
  const HeadResult compact = run_head(in, {.hard_weight = 1});
  EXPECT_TRUE(finite(compact.metrics_MN));
  EXPECT_TRUE(finite(compact.grads.weight_VH));
  EXPECT_EQ(max_abs(compact.grads.hidden_NH[1]), 0);
}

// The same tokens, whatever the padding of either lm_head, and whatever the padded rows hold.
TEST(Padding, ExtraVocabularyRowsHaveNoProbability) {
  const LinearHeadInputs bare = make_problem({.vocab = 101});
  LinearHeadInputs padded = bare;
  padded.weight_VH = at::cat({bare.weight_VH, at::full({27, 16}, 9.0, bare.weight_VH.options())});
  padded.teacher_weight_VG = at::cat({bare.teacher_weight_VG, at::zeros({3, 24}, bare.teacher_weight_VG.options())});
  padded.vocab_size = 101;
  const HeadResult a = run_head(bare, {.hard_weight = 1, .label_smoothing = 0.1});
  const HeadResult b = run_head(padded, {.hard_weight = 1, .label_smoothing = 0.1});
  EXPECT_LT(relative_error(b.metrics_MN, a.metrics_MN), 1e-13);
  EXPECT_LT(relative_error(b.grads.hidden_NH, a.grads.hidden_NH), 1e-13);
}

TEST(Options, BetaFollowsTheField) {
  const LinearHeadInputs in = make_problem({});
  const at::Tensor zero = linear_head(in, {.beta = 0}, {}, nullptr).metrics_MN;
  const at::Tensor one = linear_head(in, {.beta = 1}, {}, nullptr).metrics_MN;
  EXPECT_TRUE(at::equal(zero[kSoft], zero[kForwardKl]));
  EXPECT_TRUE(at::equal(one[kSoft], one[kReverseKl]));
  EXPECT_GT(relative_error(zero[kSoft], one[kSoft]), 1e-2);
}

// bf16 logits are an option, with an error that this test pins: useful far from the teacher, not near it.
TEST(Options, Bf16LogitsAreCoarserThanFp32) {
  const LinearHeadInputs in = make_problem({.tokens = 32, .vocab = 2003, .hidden = 64, .dtype = at::kBFloat16});
  const NaiveResult naive = naive_head(in, {});
  const HeadResult rounded = run_head(in, {.logits_dtype = LogitsDtype::kBFloat16});
  const double error = relative_error(rounded.grads.weight_VH, naive.d_weight_VH);
  EXPECT_LT(error, 5e-2);
  EXPECT_GT(error, relative_error(run_head(in, {}).grads.weight_VH, naive.d_weight_VH));
}

} // namespace
} // namespace distill::losses::testing
