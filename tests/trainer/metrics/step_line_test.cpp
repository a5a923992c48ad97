#include "trainer/metrics/step_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::metrics {
namespace {

using testing::HasSubstr;

StepMetrics record() {
  StepMetrics r;
  r.step = 1234;
  r.total_steps = 20000;
  std::array<double, losses::kNumTokenMetrics> sums{};
  sums.fill(57.3888);
  r.means = loss_means(sums, 4, {});
  r.grad_norm = 1.5;
  r.lr = 1e-3;
  r.tokens_per_second = 12345;
  r.peak_memory_bytes = int64_t{3} << 30;
  r.eta_seconds = 7384;
  return r;
}

TEST(StepLine, ShowsWhatAPersonLooksFor) {
  auto r = record();
  EXPECT_THAT(
      step_line(r),
      testing::AllOf(
          HasSubstr("step 1234/20000"), HasSubstr("loss 14.3472"), HasSubstr("teacher ce 14.3472"),
          HasSubstr("kl 14.3472/14.3472"), HasSubstr("12345 tok/s"), HasSubstr("eta 2:03:04")));
  EXPECT_THAT(step_line(r), testing::Not(HasSubstr("mfu")));
  r.mfu_causal = 0.4;
  EXPECT_THAT(step_line(r), HasSubstr("mfu 40.0%"));
  r.skipped = true;
  EXPECT_THAT(step_line(r), HasSubstr("SKIPPED"));
}

TEST(StepLine, BoundsAndEstimatesAreMarked) {
  using losses::TeacherKind;
  auto r = record();
  std::array<double, losses::kNumTokenMetrics> sums{};
  sums.fill(57.3888);
  r.means = loss_means(sums, 4, losses::available_metrics(TeacherKind::kTopK, {}));
  EXPECT_THAT(
      step_line(r),
      testing::AllOf(
          HasSubstr("loss> 14.3472"), HasSubstr("  ce 14.3472"), HasSubstr("teacher ce> 14.3472"),
          HasSubstr("soft> 14.3472"), HasSubstr("kl> 14.3472/14.3472"), HasSubstr("agree 1434.7%")));
  EXPECT_THAT(eval_line(3, r.means), testing::AllOf(HasSubstr("loss> 14.3472"), HasSubstr("teacher ce> 14.3472")));
  EXPECT_THAT(fitting_line(step_fields(r), 39, /*colour=*/false), HasSubstr(">14.35"));
  losses::LossOptions options;
  options.divergence = losses::Divergence::kForwardKl;
  r.means = loss_means(sums, 4, losses::available_metrics(TeacherKind::kSampled, options));
  EXPECT_THAT(step_line(r), testing::AllOf(HasSubstr("loss~ 14.3472"), HasSubstr("soft~ 14.3472")));
  EXPECT_THAT(step_line(r), testing::Not(testing::AnyOf(HasSubstr("teacher ce"), HasSubstr("kl"))));
}

TEST(StepLine, TheMemoryOfAProcessAndThatOfTensorsHaveOtherNames) {
  auto r = record();
  EXPECT_THAT(step_line(r), HasSubstr("rss 3.00 GiB")); // a CPU's
  r.peak_reserved_bytes = int64_t{4} << 30;
  EXPECT_THAT(step_line(r), HasSubstr("mem 3.00 GiB"));
}

TEST(StepLine, AStepWithoutATargetHasNoNumbers) {
  auto r = record();
  r.means = loss_means(std::array<double, losses::kNumTokenMetrics>{}, 0, {});
  r.empty_steps = 2;
  EXPECT_THAT(
      step_line(r),
      testing::AllOf(
          HasSubstr("loss -  ce -  teacher ce -  soft -  kl -  agree -  |g| -"),
          HasSubstr("EMPTY (no token has a target; 2 so far)")));
}

TEST(StepFields, FortyColumnsHaveStepLossSpeedAndEta) {
  auto r = record();
  for (const bool skipped : {false, true}) {
    r.skipped = skipped;
    const std::string line = fitting_line(step_fields(r), 39, /*colour=*/false);
    EXPECT_LE(line.size(), 39U) << line;
    for (const char* part : {"1234/20000", "14.35", "12.3k tok/s", "2:03:04"}) {
      EXPECT_THAT(line, HasSubstr(part));
    }
  }
}

TEST(StepFields, WiderLinesHaveAllThatNarrowerOnesHave) {
  const auto r = record();
  size_t before = 0;
  for (const int64_t columns : {39, 60, 79, 100, 120, 160, 200}) {
    std::vector<LineField> fields = step_fields(r);
    const std::string line = fitting_line(fields, columns, /*colour=*/false);
    EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    EXPECT_GE(line.size(), before) << line;
    before = line.size();
  }
  EXPECT_EQ(fitting_line(step_fields(r), 200, /*colour=*/false), step_line(r));
}

TEST(EvalLine, WithoutATargetHasNoNumbers) {
  EXPECT_EQ(
      eval_line(
          3,
          loss_means(
              std::array<double, losses::kNumTokenMetrics>{}, 0,
              losses::available_metrics(losses::TeacherKind::kNone, {}))),
      "eval after step 3  loss -  ce -  (0 tokens)");
}

} // namespace
} // namespace distill::metrics
