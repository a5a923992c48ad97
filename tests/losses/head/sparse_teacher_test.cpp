// Teachers of top-k and of samples against the naive fp64 computation: values, gradients, edges.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

using Case = HeadCase;

void expect_matches_naive(
    const LinearHeadInputs& in, const LossOptions& options, const ChunkOptions& chunks, double tolerance,
    double gradient_tolerance) {
  constexpr double kScale = 0.37;
  expect_near(run_head(in, options, chunks, kScale), naive_sparse(in, options, kScale), tolerance, gradient_tolerance);
}

std::vector<Case> cases() {
  const ProblemSpec plain;
  ProblemSpec bias = plain;
  bias.biases = bias.token_weights = true;
  ProblemSpec padded = plain;
  padded.vocab = 120;
  padded.vocab_size = 101;
  ProblemSpec no_targets = plain;
  no_targets.targets = false;
  std::vector<Case> all;
  for (const auto& [name, divergence] : soft_divergences()) {
    all.push_back({name, {.divergence = divergence, .beta = 0.3}, plain});
    all.push_back({name + "_mix", {.divergence = divergence, .hard_weight = 0.4, .soft_weight = 0.7}, plain});
    all.push_back({name + "_everything", every_option(divergence), bias});
  }
  const LossOptions forward{.divergence = Divergence::kForwardKl};
  all.push_back({"weights", {.divergence = Divergence::kForwardKl, .hard_weight = 1}, bias});
  all.push_back({"padded", {.divergence = Divergence::kForwardKl, .hard_weight = 1, .label_smoothing = 0.1}, padded});
  all.push_back({"no_targets", forward, no_targets});
  all.push_back({"jsd_beta_0", {.beta = 0}, plain});
  all.push_back({"hot", {.divergence = Divergence::kForwardKl, .temperature = 3, .hard_weight = 0.5}, plain});
  all.push_back({"hard_alone", {.divergence = Divergence::kNone, .hard_weight = 1, .soft_weight = 0}, plain});
  return all;
}

// Those whose divergence samples can estimate.
std::vector<Case> sampled_cases() {
  std::vector<Case> all = cases();
  std::erase_if(all, [](const Case& c) { return effective_divergence(c.options) != Divergence::kForwardKl; });
  return all;
}

class TopKTeachers : public ::testing::TestWithParam<Case> {};
class SampledTeachers : public ::testing::TestWithParam<Case> {};

TEST_P(TopKTeachers, MatchNaiveInFp64) {
  const auto& [name, options, problem] = GetParam();
  for (const int64_t k : {1, 7, 64}) {
    LinearHeadInputs in = with_topk(make_problem(problem), options, k);
    for (const bool known : {false, true}) {
      set_known(in, known);
      for (const int64_t chunk : {1, 4, 64}) {
        SCOPED_TRACE(::testing::Message() << "k " << k << " chunk " << chunk << " known " << known);
        expect_matches_naive(in, options, {.chunk_size = chunk}, 1e-9, 1e-9);
      }
    }
  }
}

TEST_P(TopKTeachers, MatchNaiveInEveryDtype) {
  const auto& [name, options, problem] = GetParam();
  for (const at::ScalarType student : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(::testing::Message() << student << ' ' << dtype);
      ProblemSpec spec = problem;
      spec.dtype = student;
      const LinearHeadInputs in = with_topk(make_problem(spec), options, 20, dtype);
      expect_matches_naive(in, options, {.chunk_size = 4}, 3e-5, student == at::kFloat ? 3e-5 : 6e-3);
    }
  }
}

TEST_P(SampledTeachers, MatchNaiveInEveryDtype) {
  const auto& [name, options, problem] = GetParam();
  for (const at::ScalarType student : {at::kDouble, at::kFloat, at::kBFloat16}) {
    ProblemSpec spec = problem;
    spec.dtype = student;
    for (const int64_t samples : {1, 3, 40, 200}) { // of 101 columns: repetitions
      LinearHeadInputs in =
          with_samples(make_problem(spec), options, samples, 0.7, student == at::kDouble ? student : at::kFloat);
      for (const bool known : {false, true}) {
        set_known(in, known);
        SCOPED_TRACE(::testing::Message() << student << ' ' << samples << ' ' << known);
        const double tolerance = student == at::kDouble ? 1e-10 : 2e-5;
        expect_matches_naive(in, options, {.chunk_size = 4}, tolerance, student == at::kBFloat16 ? 6e-3 : tolerance);
      }
    }
  }
}

const auto case_name = [](const auto& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Options, TopKTeachers, ::testing::ValuesIn(cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Options, SampledTeachers, ::testing::ValuesIn(sampled_cases()), case_name);

// Widths and alignments, beyond one block of the kernel.
TEST(SparseTeacher, AnyWidth) {
  for (const int64_t vocab : {2, 3, 17, 1023, 4099, 50257}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << vocab << ' ' << dtype);
      const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 0.5};
      const ProblemSpec spec{.tokens = 5, .vocab = vocab, .hidden = 8, .teacher_hidden = 8, .dtype = dtype};
      const double rounding = dtype == at::kBFloat16 ? 6e-3 : 1e-4;
      const int64_t k = std::min<int64_t>(vocab, 1024);
      expect_matches_naive(with_topk(make_problem(spec), options, k, at::kFloat), options, {}, 1e-4, rounding);
      expect_matches_naive(with_samples(make_problem(spec), options, 256), options, {}, 1e-4, rounding);
    }
  }
}

} // namespace
} // namespace distill::losses::testing
