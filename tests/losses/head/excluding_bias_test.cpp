// Biases that exclude columns, with softcaps: the head computes what it does where these rows are not there.
#include "losses/excluding_bias.h"

#include <gtest/gtest.h>

#include "losses/head/capture.h"
#include "tests/losses/cases.h"
#include "tests/losses/naive.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

// Softcaps of student and teacher, and a temperature.
struct Caps {
  double student, teacher, temperature;
};
constexpr Caps kCaps[] = {{3, 0, 1}, {0, 3, 1}, {4, 2, 1}, {30, 30, 1}, {4, 2, 2.5}, {5, 0, 0.3}, {3, 5, 7}};
constexpr int64_t kVocab = 101, kEvery = 3; // every third row is excluded

LossOptions with(const Caps& caps, LossOptions options) {
  options.student_softcap = caps.student;
  options.teacher_softcap = caps.teacher;
  options.temperature = caps.temperature;
  return options;
}

ProblemSpec spec_of(at::ScalarType dtype) {
  return {.vocab = kVocab, .ignored = 0.2, .token_weights = true, .biases = true, .dtype = dtype};
}

at::Tensor kept_rows() {
  const at::Tensor rows = at::arange(kVocab, at::TensorOptions(at::kLong).device(test_device()));
  return rows.index({rows.remainder(kEvery).ne(0)});
}

// The problem, whose labels have rows, with biases that exclude the others.
LinearHeadInputs excluding(LinearHeadInputs in, double bias, double temperature) {
  const at::Tensor rows = at::arange(kVocab, in.targets_N.options());
  for (const at::Tensor& own : {in.bias_V, in.teacher_bias_V}) {
    if (own.defined()) {
      at::Tensor(own).masked_fill_(rows.remainder(kEvery).eq(0), bias * std::max(1.0, temperature));
    }
  }
  const at::Tensor& labels = in.targets_N;
  in.targets_N = at::where(labels.ge(0).logical_and(labels.remainder(kEvery).eq(0)), labels + 1, labels);
  return in;
}

// The same problem with the other rows alone.
LinearHeadInputs without_rows(LinearHeadInputs in) {
  const at::Tensor rows = kept_rows();
  for (at::Tensor* of_rows : {&in.weight_VH, &in.bias_V, &in.teacher_weight_VG, &in.teacher_bias_V}) {
    *of_rows = of_rows->defined() ? of_rows->index_select(0, rows) : *of_rows;
  }
  const at::Tensor numbers =
      at::full({kVocab}, -1, rows.options()).index_copy(0, rows, at::arange(rows.size(0), rows.options()));
  in.targets_N = at::where(in.targets_N.ge(0), numbers.index_select(0, in.targets_N.clamp_min(0)), in.targets_N);
  return in;
}

// Expects no gradient of excluded rows, and takes them out of `found`.
HeadResult of_kept_rows(HeadResult found) {
  for (at::Tensor* gradient : {&found.grads.weight_VH, &found.grads.bias_V}) {
    const at::Tensor rows = at::arange(kVocab, at::TensorOptions(at::kLong).device(gradient->device()));
    EXPECT_EQ(gradient->index_select(0, rows.index({rows.remainder(kEvery).eq(0)})).abs().max().item<double>(), 0);
    *gradient = gradient->index_select(0, kept_rows());
  }
  return found;
}

class ExcludingBias : public ::testing::TestWithParam<HeadCase> {};

TEST_P(ExcludingBias, IsAHeadWithoutTheseRows) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 3e-5}}) {
    for (const Caps& caps : kCaps) {
      for (const double bias : {kExcludingBias, 16 * kExcludingBias}) {
        SCOPED_TRACE(
            ::testing::Message() << c10::toString(dtype) << " caps " << caps.student << ", " << caps.teacher << " T "
                                 << caps.temperature << " bias " << bias);
        const LossOptions options = with(caps, GetParam().options);
        const LinearHeadInputs in = excluding(make_problem(spec_of(dtype)), bias, caps.temperature);
        expect_near(
            of_kept_rows(run_head(in, options, {.chunk_size = 4})), naive_head(without_rows(in), options), tolerance,
            tolerance);
      }
    }
  }
}

std::vector<HeadCase> cases() {
  std::vector<HeadCase> all;
  for (const auto& [name, divergence] : soft_divergences()) {
    all.push_back({name, {.divergence = divergence, .beta = 0.3, .skew_alpha = 0.4}, {}});
    all.push_back(
        {name + "_mix", {.divergence = divergence, .hard_weight = 0.6, .soft_weight = 0.9, .z_loss = 1e-2}, {}});
  }
  all.push_back({"labels", {.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0}, {}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Losses, ExcludingBias, ::testing::ValuesIn(cases()), [](const auto& c) {
  return c.param.name;
});

// In bf16 the bias is exact; gradients have bf16's rounding.
TEST(ExcludingBiases, InBf16) {
  const LossOptions options{.hard_weight = 0.5, .student_softcap = 4, .teacher_softcap = 3};
  const LinearHeadInputs in = excluding(make_problem(spec_of(at::kBFloat16)), kExcludingBias, 1);
  expect_near(of_kept_rows(run_head(in, options)), naive_head(without_rows(in), options), 2e-5, 4e-3);
}

// A bias of -inf excludes, too, and has no gradient that is not a number.
TEST(ExcludingBiases, MayBeInfinite) {
  for (const auto& [name, divergence] : soft_divergences()) {
    SCOPED_TRACE(name);
    const LossOptions options{.divergence = divergence, .hard_weight = 0.5, .student_softcap = 4, .teacher_softcap = 3};
    const LinearHeadInputs in = excluding(make_problem(spec_of(at::kFloat)), -INFINITY, 1);
    expect_near(of_kept_rows(run_head(in, options)), naive_head(without_rows(in), options), 3e-5, 3e-5);
  }
}

// What is just above the number is a bias like any other.
TEST(ExcludingBiases, ALargeBiasIsCapped) {
  const LossOptions options{.student_softcap = 4, .teacher_softcap = 3};
  const LinearHeadInputs in = excluding(make_problem(spec_of(at::kDouble)), kExcludingBias + 1, 1);
  expect_near(run_head(in, options), naive_head(in, options), 1e-10, 1e-10);
}

// A student that excludes columns, beside a teacher of which a few tokens are known.
TEST(ExcludingBiases, OfAStudentWithTopK) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 0.5, .student_softcap = 4};
  const LinearHeadInputs in = excluding(make_problem(spec_of(at::kDouble)), kExcludingBias, 1);
  LinearHeadInputs topk = with_topk(without_rows(in), options, 5); // ids of the rows that are left
  const NaiveResult expected = naive_sparse(topk, options);
  topk.topk_ids_NK =
      kept_rows().index_select(0, topk.topk_ids_NK.to(at::kLong).flatten()).view_as(topk.topk_ids_NK).to(at::kInt);
  topk.weight_VH = in.weight_VH;
  topk.bias_V = in.bias_V;
  topk.targets_N = in.targets_N;
  topk.vocab_size = kVocab;
  const HeadResult found = of_kept_rows(run_head(topk, options));
  expect_near(found, expected, 1e-10, 1e-10);
}

// Top-k of a teacher that excludes columns has the others alone.
TEST(ExcludingBiases, AreCaptured) {
  const LossOptions options{.teacher_softcap = 3};
  const LinearHeadInputs in = excluding(make_problem(spec_of(at::kDouble)), kExcludingBias, 1);
  CaptureInputs teacher;
  teacher.hidden_NG = in.teacher_hidden_NG;
  teacher.weight_VG = in.teacher_weight_VG;
  teacher.bias_V = in.teacher_bias_V;
  teacher.softcap = 3;
  const TopK found = capture_topk(teacher, 5, {});
  const LinearHeadInputs expected = with_topk(without_rows(in), options, 5);
  EXPECT_LT(relative_error(found.log_probs_NK, expected.topk_log_probs_NK), 1e-10);
  EXPECT_LT(relative_error(found.tail_N, expected.tail_N), 1e-10);
}

} // namespace
} // namespace distill::losses::testing
