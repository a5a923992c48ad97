// Groups whose chunks become smaller, with logits where gradients will be written later: against the naive fp64
// computation, and under a small cap.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/cases.h"
#include "tests/losses/naive.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

constexpr double kScale = 0.37;

struct Case {
  const char* name;
  at::ScalarType dtype;
  int64_t vocab;
  double tolerance; // that of the rounding of the logits' gradient to this dtype
  LogitsDtype logits = LogitsDtype::kFloat32;
  bool teacher = true;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// The smallest cap under which a call has several groups of at least three chunks, not of one size.
ChunkOptions shrinking_chunks(const LinearHeadInputs& in, const LossOptions& options) {
  for (int64_t cap = 1; cap < 64; ++cap) {
    const ChunkOptions chunks{.memory_cap_mb = cap, .min_chunk_size = 1};
    const auto plan = linear_head_plan(in, options, chunks, /*needs_grad=*/true);
    if (plan.ok() && plan->logits_rows.size() > 2 && plan->logits_rows.front() > plan->logits_rows.end()[-2] &&
        plan->num_groups(1150) > 1) {
      EXPECT_LE(plan->bytes, cap << 20);
      return chunks;
    }
  }
  ADD_FAILURE() << "no such cap";
  return {};
}

class ChunkGroups : public ::testing::TestWithParam<std::tuple<Case, bool>> {
 protected:
  ChunkGroups() {
    const auto& [c, known] = GetParam();
    in_ = make_problem(
        {.tokens = 1500,
         .vocab = c.vocab,
         .hidden = 48,
         .teacher_hidden = c.teacher ? 8 : 0,
         .ignored = 0.2,
         .token_weights = true,
         .biases = true,
         .dtype = c.dtype});
    set_known(in_, known);
    options_ = {
        .divergence = c.teacher ? Divergence::kJsd : Divergence::kNone,
        .hard_weight = 0.5,
        .soft_weight = c.teacher ? 1.0 : 0.0,
        .logits_dtype = c.logits};
    chunks_ = shrinking_chunks(in_, options_);
  }

  LinearHeadInputs in_;
  LossOptions options_;
  ChunkOptions chunks_;
};

TEST_P(ChunkGroups, MatchNaive) {
  const Case& c = std::get<0>(GetParam());
  const auto plan = linear_head_plan(in_, options_, chunks_, /*needs_grad=*/true);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const NaiveResult naive = naive_head(in_, options_, kScale);
  // Of the caller, full of NaN and exactly as large as planned: the head refuses buffers that do not fit.
  const at::Tensor arena = at::full({plan->arena_bytes}, 255, in_.hidden_NH.options().dtype(at::kByte));
  for (const bool accumulate : {true, false}) {
    LinearHeadGrads grads = make_grads(in_, kScale);
    grads.accumulate = accumulate;
    const at::Tensor metrics = linear_head(in_, options_, chunks_, &grads, arena).metrics_MN;
    EXPECT_LT(relative_error(metrics[kLoss], naive.loss_N), c.tolerance);
    EXPECT_LT(relative_error(grads.hidden_NH, naive.d_hidden_NH), c.tolerance);
    EXPECT_LT(relative_error(grads.weight_VH, naive.d_weight_VH), c.tolerance);
    EXPECT_LT(relative_error(grads.bias_V, naive.d_bias_V), c.tolerance);
  }
}

TEST_P(ChunkGroups, RepeatBitForBitAndWithoutGradients) {
  const HeadResult a = run_head(in_, options_, chunks_);
  const HeadResult b = run_head(in_, options_, chunks_);
  expect_same(a, b);
  const at::Tensor alone = linear_head(in_, options_, chunks_, nullptr).metrics_MN;
  EXPECT_LT(relative_error(alone[kLoss], a.metrics_MN[kLoss]), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, ChunkGroups,
    ::testing::Combine(
        ::testing::Values(
            Case{"fp64", at::kDouble, 1501, 1e-10}, Case{"fp32", at::kFloat, 1501, 2e-5},
            Case{"bf16", at::kBFloat16, 3001, 6e-3},
            Case{"bf16_logits", at::kBFloat16, 3001, 0.2, LogitsDtype::kBFloat16},
            Case{"bf16_alone", at::kBFloat16, 3001, 6e-3, LogitsDtype::kFloat32, /*teacher=*/false}),
        ::testing::Bool()),
    [](const auto& c) { return std::string(std::get<0>(c.param).name) + (std::get<1>(c.param) ? "_known" : ""); });

// The entries of top-k and samples lie in the chunk's part of the arena.
TEST(ChunkGroupsOfACachedTeacher, AreLikeEqualChunks) {
  for (const bool topk : {true, false}) {
    const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
    const LinearHeadInputs whole = make_problem({.tokens = 1500, .vocab = 1501, .hidden = 48, .dtype = at::kBFloat16});
    LinearHeadInputs in = topk ? with_topk(whole, options, 64, at::kFloat) : with_samples(whole, options, 40);
    for (const bool known : {false, true}) {
      set_known(in, known);
      const HeadResult ours = run_head(in, options, shrinking_chunks(in, options));
      const HeadResult equal = run_head(in, options, {.chunk_size = 100});
      EXPECT_LT(relative_error(ours.metrics_MN, equal.metrics_MN), 1e-5);
      EXPECT_LT(relative_error(ours.grads.hidden_NH, equal.grads.hidden_NH), 1e-3); // bf16
      EXPECT_LT(relative_error(ours.grads.weight_VH, equal.grads.weight_VH), 1e-3);
    }
  }
}

} // namespace
} // namespace distill::losses::testing
