// What each kind of teacher can give, and the messages that say what it cannot.
#include "losses/teacher_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::losses {
namespace {

using enum MetricQuality;
using ::testing::HasSubstr;

TEST(TeacherKinds, HiddenStatesGiveEveryMetricExactly) {
  for (const MetricQuality quality : available_metrics(TeacherKind::kHidden, {.temperature = 3})) {
    EXPECT_EQ(quality, kExact);
  }
}

TEST(TeacherKinds, WithoutATeacherOnlyTheStudentsMetricsExist) {
  const auto quality = available_metrics(TeacherKind::kNone, {.divergence = Divergence::kNone});
  for (const TokenMetric metric : {kLoss, kHard, kZLoss, kStudentEntropy, kAccuracy, kStudentLse}) {
    EXPECT_EQ(quality[metric], kExact) << metric;
  }
  for (const TokenMetric metric :
       {kSoft, kForwardKl, kReverseKl, kTeacherEntropy, kAgreement, kTeacherLse, kTeacherCe}) {
    EXPECT_EQ(quality[metric], kUnavailable) << metric;
  }
}

TEST(TeacherKinds, TopKGivesLowerBounds) {
  const auto quality = available_metrics(TeacherKind::kTopK, {});
  for (const TokenMetric metric : {kLoss, kSoft, kForwardKl, kReverseKl, kTeacherEntropy, kTeacherCe}) {
    EXPECT_EQ(quality[metric], kLowerBound) << metric;
  }
  EXPECT_EQ(quality[kAgreement], kExact);
  EXPECT_EQ(quality[kHard], kExact);
  EXPECT_EQ(quality[kTeacherLse], kUnavailable);
  EXPECT_EQ(available_metrics(TeacherKind::kTopK, {.temperature = 2})[kTeacherCe], kUnavailable);
  EXPECT_EQ(available_metrics(TeacherKind::kTopK, {.hard_weight = 1, .soft_weight = 0})[kLoss], kExact);
}

TEST(TeacherKinds, SamplesGiveAnEstimateOfTheSoftLossAlone) {
  const auto quality = available_metrics(TeacherKind::kSampled, {.divergence = Divergence::kForwardKl});
  EXPECT_EQ(quality[kLoss], kEstimate);
  EXPECT_EQ(quality[kSoft], kEstimate);
  for (const TokenMetric metric : {kForwardKl, kReverseKl, kTeacherEntropy, kAgreement, kTeacherLse, kTeacherCe}) {
    EXPECT_EQ(quality[metric], kUnavailable) << metric;
  }
}

TEST(TeacherKinds, TheLossAloneLeavesItsPartsAndTheLogSumExps) {
  for (const TeacherKind kind : {TeacherKind::kHidden, TeacherKind::kNone}) {
    const auto all = available_metrics(kind, {}), loss = available_metrics(kind, {.metrics = MetricSet::kLoss});
    for (const TokenMetric metric : {kLoss, kHard, kSoft, kZLoss, kStudentLse, kTeacherLse}) {
      EXPECT_EQ(loss[metric], all[metric]) << metric;
    }
    for (const TokenMetric metric :
         {kForwardKl, kReverseKl, kStudentEntropy, kTeacherEntropy, kAgreement, kAccuracy, kTeacherCe}) {
      EXPECT_EQ(loss[metric], kUnavailable) << metric;
    }
  }
}

TEST(TeacherKinds, FewTokensOfATeacherGiveTheirMetricsWithTheLossAloneToo) {
  for (const TeacherKind kind : {TeacherKind::kTopK, TeacherKind::kSampled}) {
    const LossOptions all{.divergence = Divergence::kForwardKl};
    LossOptions loss = all;
    loss.metrics = MetricSet::kLoss;
    EXPECT_EQ(available_metrics(kind, loss), available_metrics(kind, all));
  }
}

TEST(TeacherKinds, RefusalsNameWhatCannotBe) {
  const auto message = [](const LossOptions& options, TeacherKind kind, double temperature = 1) {
    return std::string(validate_for_teacher(options, kind, temperature).message());
  };
  EXPECT_THAT(message({}, TeacherKind::kSampled), HasSubstr("divergence: samples of the teacher estimate forward_kl"));
  EXPECT_THAT(message({}, TeacherKind::kSampled), HasSubstr("found jsd"));
  for (const Divergence divergence :
       {Divergence::kReverseKl, Divergence::kSkewForwardKl, Divergence::kSkewReverseKl, Divergence::kTotalVariation}) {
    EXPECT_THAT(
        message({.divergence = divergence}, TeacherKind::kSampled),
        HasSubstr(std::string("found ") + base::enum_name(divergence)));
  }
  EXPECT_EQ(message({.beta = 0}, TeacherKind::kSampled), "");
  EXPECT_EQ(message({}, TeacherKind::kTopK), "");
  EXPECT_EQ(message({.temperature = 2}, TeacherKind::kHidden), "");
  EXPECT_EQ(message({.temperature = 2}, TeacherKind::kTopK, 2), "");
  EXPECT_THAT(
      message({.temperature = 2}, TeacherKind::kTopK),
      HasSubstr("temperature: the teacher's kind topk was captured at temperature 1, found 2"));
}

} // namespace
} // namespace distill::losses
