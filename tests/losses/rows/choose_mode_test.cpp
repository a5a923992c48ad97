// Which kind of cluster kernel a call takes.
#include "losses/rows/cuda/cluster/choose_mode.h"

#include <gtest/gtest.h>

namespace distill::losses {
namespace {

using cluster::Mode;

RowArgs call(bool teacher, ElementType logits, const LossOptions& options) {
  static const float kSomewhere = 0;
  RowArgs args;
  args.student = &kSomewhere;
  args.teacher = teacher ? &kSomewhere : nullptr;
  args.logits_type = logits;
  args.options = options;
  return args;
}

TEST(ClusterMode, FollowsTheCall) {
  constexpr ElementType kFloat = ElementType::kFloat32;
  constexpr ElementType kBf16 = ElementType::kBFloat16;
  for (const ElementType type : {kFloat, kBf16}) {
    for (const bool teacher : {false, true}) {
      EXPECT_EQ(cluster_mode(call(teacher, type, {})), Mode::kUnit);
      EXPECT_EQ(cluster_mode(call(teacher, type, {.temperature = 2})), Mode::kTempered);
      EXPECT_EQ(cluster_mode(call(teacher, type, {.label_smoothing = 0.1})), Mode::kGeneral);
      EXPECT_EQ(
          cluster_mode(call(teacher, type, {.student_softcap = 30})), type == kFloat ? Mode::kCapped : Mode::kGeneral);
      EXPECT_EQ(
          cluster_mode(call(teacher, type, {.temperature = 2, .student_softcap = 30})),
          type == kFloat ? Mode::kCappedTempered : Mode::kGeneral);
    }
    const LossOptions skew{.divergence = Divergence::kSkewForwardKl};
    EXPECT_EQ(cluster_mode(call(true, type, skew)), type == kFloat ? Mode::kUnit : Mode::kGeneral);
    EXPECT_FALSE(is_usual(call(true, type, skew)));
    LossOptions hot_skew = skew;
    hot_skew.temperature = 2;
    EXPECT_EQ(cluster_mode(call(true, type, hot_skew)), Mode::kGeneral);
    LossOptions capped_skew = skew;
    capped_skew.teacher_softcap = 30;
    EXPECT_EQ(cluster_mode(call(true, type, capped_skew)), Mode::kGeneral);
    EXPECT_EQ(cluster_mode(call(false, type, skew)), Mode::kUnit); // labels alone
    EXPECT_TRUE(is_usual(call(false, type, skew)));
    EXPECT_EQ(
        cluster_mode(call(true, type, {.divergence = Divergence::kNone})), Mode::kGeneral); // metrics of a teacher
    RowArgs biased = call(true, type, {});
    biased.teacher_bias = biased.teacher;
    EXPECT_EQ(cluster_mode(biased), Mode::kGeneral);
  }
}

// The modes without the other metrics are for fp32 logits at T = 1 and the usual divergences alone.
TEST(ClusterMode, TheLossAloneHasModesOfItsOwn) {
  const auto mode = [](RowArgs args, MetricSet metrics) {
    args.options.metrics = metrics;
    return cluster_mode(args);
  };
  constexpr LossOptions kCap{.student_softcap = 30, .teacher_softcap = 50};
  for (const bool teacher : {false, true}) {
    for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl}) {
      const RowArgs plain = call(teacher, ElementType::kFloat32, {.divergence = divergence});
      EXPECT_EQ(mode(plain, MetricSet::kLoss), Mode::kUnitLoss);
      EXPECT_EQ(mode(plain, MetricSet::kAll), Mode::kUnit);
    }
    const RowArgs capped = call(teacher, ElementType::kFloat32, kCap);
    EXPECT_EQ(mode(capped, MetricSet::kLoss), Mode::kCappedLoss);
    EXPECT_EQ(mode(capped, MetricSet::kAll), Mode::kCapped);
  }
  EXPECT_EQ(mode(call(false, ElementType::kFloat32, {.student_softcap = 30}), MetricSet::kLoss), Mode::kCappedLoss);
  for (const LossOptions& one_side : {LossOptions{.teacher_softcap = 30}, LossOptions{.student_softcap = 30}}) {
    EXPECT_EQ(mode(call(true, ElementType::kFloat32, one_side), MetricSet::kLoss), Mode::kCapped);
  }

  RowArgs student_bias = call(true, ElementType::kFloat32, {}), teacher_bias = student_bias;
  student_bias.student_bias = student_bias.student;
  teacher_bias.teacher_bias = teacher_bias.teacher;
  const std::vector<RowArgs> others{
      student_bias,
      teacher_bias,
      call(true, ElementType::kBFloat16, {}),
      call(true, ElementType::kBFloat16, kCap),
      call(false, ElementType::kBFloat16, {}),
      call(true, ElementType::kFloat32, {.temperature = 2}),
      call(true, ElementType::kFloat32, {.temperature = 2, .student_softcap = 30}),
      call(true, ElementType::kFloat32, {.label_smoothing = 0.1}),
      call(true, ElementType::kFloat32, {.divergence = Divergence::kSkewForwardKl}),
      call(true, ElementType::kFloat32, {.divergence = Divergence::kTotalVariation, .student_softcap = 30}),
      call(true, ElementType::kFloat32, {.divergence = Divergence::kNone})};
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(mode(others[i], MetricSet::kLoss), mode(others[i], MetricSet::kAll)) << i;
  }
}

TEST(ClusterMode, Bf16LogitsHaveNoGeneralClusterKernel) {
  EXPECT_TRUE(has_cluster_kernel(call(true, ElementType::kBFloat16, {})));
  EXPECT_TRUE(has_cluster_kernel(call(false, ElementType::kBFloat16, {.temperature = 2})));
  EXPECT_FALSE(has_cluster_kernel(call(true, ElementType::kBFloat16, {.label_smoothing = 0.1})));
  EXPECT_TRUE(has_cluster_kernel(call(true, ElementType::kFloat32, {.label_smoothing = 0.1})));
  EXPECT_FALSE(has_cluster_kernel(call(true, ElementType::kFloat64, {})));
}

} // namespace
} // namespace distill::losses
