// The streaming row kernel on a CPU against the reference rows.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/losses/emulation/kernel_checks.h"
#include "tests/losses/emulation/rows.h"
#include "tests/losses/reference.h"

namespace distill::losses::testing {
namespace {

// Blocks to a row and slots: a row that stays in shared memory, rows of which a part does, and several blocks.
struct StreamingPlan {
  int blocks;
  int slots;
};
constexpr StreamingPlan kStreamingPlans[] = {{1, 6}, {1, 2}, {1, 1}, {3, 1}};

void expect_streaming_matches(const RowSpec& spec, const LossOptions& options, double tolerance) {
  const Rows expected = reference_of(spec, options);
  for (const auto& [blocks, slots] : kStreamingPlans) {
    SCOPED_TRACE(::testing::Message() << "blocks " << blocks << " slots " << slots);
    Rows ours = make_rows(spec, options);
    ASSERT_NO_THROW(emulate_streaming_rows(ours.args, blocks, slots));
    expect_equal_rows(spec, ours, expected, tolerance);
  }
}

class EmulatedStreaming : public ::testing::TestWithParam<Call> {};

TEST_P(EmulatedStreaming, MatchesTheReference) {
  const auto& [name, options, teacher] = GetParam();
  for (const auto& [type, tolerance] :
       {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 1e-4}, std::pair{at::kDouble, 1e-11}}) {
    for (const auto& [padding, in_place] : {std::pair{0, false}, std::pair{1, true}, std::pair{5, true}}) {
      const RowSpec spec{
          .rows = 4,
          .vocab = 9003,
          .padding = padding,
          .logits = type,
          .gradient = type,
          .teacher = teacher,
          .in_place = in_place};
      SCOPED_TRACE(::testing::Message() << c10::toString(type) << " padding " << padding);
      expect_streaming_matches(spec, options, tolerance);
    }
  }
}

TEST(EmulatedStreaming, BiasesThatExcludeColumnsMatchTheReference) {
  for (const Divergence divergence : {Divergence::kJsd, Divergence::kReverseKl, Divergence::kNone}) {
    for (const auto& [type, tolerance] :
         {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 1e-4}, std::pair{at::kDouble, 1e-11}}) {
      const RowSpec spec{.rows = 4, .vocab = 9003, .logits = type, .gradient = type, .biases = true, .excludes = true};
      const LossOptions options{
          .divergence = divergence,
          .temperature = 2,
          .hard_weight = 0.5,
          .student_softcap = 6,
          .teacher_softcap = divergence == Divergence::kReverseKl ? 0.0 : 5.0};
      SCOPED_TRACE(::testing::Message() << c10::toString(type) << " divergence " << static_cast<int>(divergence));
      expect_streaming_matches(spec, options, tolerance);
    }
  }
}

// Rows of more groups of columns than there are slots, and as many slots as copies are begun ahead.
TEST(EmulatedStreaming, LongRowsMatchTheReference) {
  for (const bool teacher : {true, false}) {
    const LossOptions options{
        .divergence = teacher ? Divergence::kJsd : Divergence::kNone, .hard_weight = 0.5, .metrics = MetricSet::kLoss};
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 1e-4}}) {
      for (const int slots : {3, 4, 6}) {
        const RowSpec spec{
            .rows = 2, .vocab = 30001, .padding = 3, .logits = type, .gradient = type, .teacher = teacher};
        SCOPED_TRACE(::testing::Message() << c10::toString(type) << " slots " << slots);
        Rows ours = make_rows(spec, options);
        ASSERT_NO_THROW(emulate_streaming_rows(ours.args, 1, slots));
        expect_equal_rows(spec, ours, reference_of(spec, options), tolerance);
      }
    }
  }
}

// Whatever the logits of a row without weight are, its gradient is 0.
TEST(EmulatedStreaming, ARowWithoutWeightHasNoGradient) {
  constexpr int64_t kWithoutWeight = 3; // of make_rows()
  for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kSkewForwardKl}) {
    const RowSpec spec{.rows = 4, .vocab = 9003, .in_place = true};
    Rows ours = make_rows(spec, {.divergence = divergence, .hard_weight = 0.5});
    ours.owned[0][kWithoutWeight][7] = NAN;
    ASSERT_NO_THROW(streaming_kernel()(ours.args));
    EXPECT_TRUE((ours.gradient[kWithoutWeight].narrow(0, 0, spec.vocab) == 0).all().item<bool>());
    EXPECT_EQ(ours.metrics[kLoss][kWithoutWeight].item<double>(), 0);
  }
}

// Without a gradient the second pass is the last one.
TEST(EmulatedStreaming, MetricsWithoutAGradient) {
  expect_streaming_matches({.rows = 3, .vocab = 9003, .padding = 1, .no_gradient = true}, {.hard_weight = 0.5}, 2e-5);
}

// Logits far from each other: the running sums change their base, and some begin with columns that are ruled out.
TEST(EmulatedStreaming, LogitsFarApart) {
  const RowSpec spec{.rows = 3, .vocab = 9003, .padding = 5};
  for (const LossOptions& options :
       {LossOptions{.hard_weight = 0.5}, LossOptions{.hard_weight = 0.5, .metrics = MetricSet::kLoss},
        LossOptions{.temperature = 0.5, .hard_weight = 0.5}}) {
    Rows ours = make_rows(spec, options);
    Rows expected = make_rows(spec, options);
    for (const Rows& rows : {ours, expected}) {
      for (const int side : {0, 1}) {
        rows.owned[side].narrow(1, 0, 100).fill_(-INFINITY);
        rows.owned[side].narrow(1, 4000, 2000).add_(150 + side);
        rows.owned[side].narrow(1, 8000, 300).add_(300 + side);
      }
    }
    reference_rows(expected.args, at::kCPU);
    ASSERT_NO_THROW(emulate_streaming_rows(ours.args, 1, 2));
    expect_equal_rows(spec, ours, expected, 2e-5);
  }
}

// Not left out of the row's log-sum-exp.
TEST(EmulatedStreaming, AHugeLogitMakesARowNaN) {
  for (const MetricSet metrics : {MetricSet::kAll, MetricSet::kLoss}) {
    const RowSpec spec{.rows = 1, .vocab = 9003, .padding = 5, .teacher = false};
    Rows ours = make_rows(spec, {.divergence = Divergence::kNone, .hard_weight = 1, .metrics = metrics});
    ours.owned[0][0][4321] = 1e10;
    ASSERT_NO_THROW(streaming_kernel()(ours.args));
    EXPECT_TRUE(std::isnan(ours.metrics[kLoss][0].item<double>()));
  }
}

TEST(EmulatedStreaming, LogitsFarFromZero) {
  for (const Divergence divergence :
       {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kNone}) {
    for (const MetricSet metrics : {MetricSet::kAll, MetricSet::kLoss}) {
      const LossOptions options{.divergence = divergence, .hard_weight = 0.5, .metrics = metrics};
      const RowSpec spec{.rows = kRows, .vocab = 9003, .padding = 5, .teacher = divergence != Divergence::kNone};
      const auto [ours, expected] = rows_far_from_zero(spec, options);
      ASSERT_NO_THROW(streaming_kernel()(ours.args));
      SCOPED_TRACE(::testing::Message() << static_cast<int>(divergence) << " metrics " << static_cast<int>(metrics));
      expect_equal_rows(spec, ours, expected, 2e-5);
    }
  }
}

TEST(EmulatedStreaming, SidesOfDifferentAlignment) {
  const RowSpec spec{.rows = 5, .vocab = 4999, .padding = 25};
  const LossOptions options{.hard_weight = 0.5};
  Rows ours = make_rows(spec, options);
  const at::Tensor moved = move_teacher(spec, ours);
  ASSERT_NO_THROW(emulate_streaming_rows(ours.args, 2, 1));
  expect_equal_rows(spec, ours, reference_of(spec, options), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, EmulatedStreaming,
    ::testing::Values(
        Call{"jsd", {.beta = 0.3, .hard_weight = 0.5}},
        Call{"jsd_alone", {.beta = 0.3, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{"reverse_kl", {.divergence = Divergence::kReverseKl, .hard_weight = 0.5}},
        Call{
            "reverse_kl_alone",
            {.divergence = Divergence::kReverseKl, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{
            "forward_kl_alone",
            {.divergence = Divergence::kForwardKl, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{"labels_alone", {.divergence = Divergence::kNone, .hard_weight = 1, .metrics = MetricSet::kLoss}, false},
        Call{
            "skew_hot_smooth_capped",
            {.divergence = Divergence::kSkewForwardKl,
             .temperature = 2,
             .hard_weight = 0.5,
             .label_smoothing = 0.1,
             .student_softcap = 6}},
        Call{"forward_kl", {.divergence = Divergence::kForwardKl, .hard_weight = 0.5}},
        Call{"forward_kl_hot", {.divergence = Divergence::kForwardKl, .temperature = 2, .hard_weight = 0.5}},
        Call{"labels", {.divergence = Divergence::kNone, .hard_weight = 1}, false},
        Call{"labels_smooth", {.divergence = Divergence::kNone, .hard_weight = 1, .label_smoothing = 0.1}, false}),
    [](const auto& call) { return call.param.name; });

} // namespace
} // namespace distill::losses::testing
