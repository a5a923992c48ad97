#include "trainer/metrics/step_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace distill::metrics {
namespace {

StepMetrics record() {
  StepMetrics r;
  r.step = 3;
  r.total_steps = 10;
  std::array<double, losses::kNumTokenMetrics> sums{};
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = 2.0 * static_cast<double>(i + 1);
  }
  r.means = loss_means(sums, 4, {});
  r.grad_norm = 1.5;
  r.lr = 1e-3;
  r.tokens_per_second = 1234;
  return r;
}

TEST(LossMeans, DividesByTheValidTokensOfTheWholeBatch) {
  const auto means = record().means;
  EXPECT_DOUBLE_EQ(means.metrics[losses::kLoss], 0.5);
  EXPECT_DOUBLE_EQ(means.metrics[losses::kTeacherLse], 2.0 * (losses::kTeacherLse + 1) / 4);
}

TEST(LossMeans, WithoutAValidTokenNothingIsKnown) {
  std::array<double, losses::kNumTokenMetrics> sums{};
  EXPECT_TRUE(std::isnan(loss_means(sums, 0, {}).metrics[losses::kLoss]));
}

TEST(StepJson, NamesEveryRowAndKeepsFullPrecision) {
  auto r = record();
  r.means.metrics[losses::kLoss] = 0.1 + 0.2;
  const auto json = step_json(r);
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["loss"].get<double>(), 0.1 + 0.2);
  for (const char* name :
       {"hard", "soft", "z_loss", "forward_kl", "reverse_kl", "student_entropy", "teacher_entropy", "agreement",
        "accuracy", "student_lse", "teacher_lse", "teacher_ce", "grad_norm", "lr", "tokens", "tokens_per_second"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["teacher_ce"], r.means.metrics[losses::kTeacherCe]);
  EXPECT_FALSE(json.contains("lower_bounds"));
  EXPECT_FALSE(json.contains("estimates"));
  r.means.quality = losses::available_metrics(losses::TeacherKind::kNone, {.divergence = losses::Divergence::kNone});
  EXPECT_FALSE(step_json(r).contains("forward_kl"));
  EXPECT_FALSE(step_json(r).contains("teacher_ce"));
}

TEST(StepJson, NamesWhatIsALowerBoundOrAnEstimateAndLeavesOutWhatIsUnknown) {
  auto r = record();
  const std::array<double, losses::kNumTokenMetrics> sums{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  r.means = loss_means(sums, 2, losses::available_metrics(losses::TeacherKind::kTopK, {}));
  auto json = step_json(r);
  EXPECT_EQ(
      json["lower_bounds"],
      nlohmann::ordered_json::parse(
          R"(["loss", "teacher_ce", "soft", "forward_kl", "reverse_kl", "teacher_entropy"])"));
  EXPECT_FALSE(json.contains("estimates"));
  EXPECT_FALSE(json.contains("teacher_lse"));
  EXPECT_TRUE(std::isnan(r.means.metrics[losses::kTeacherLse])); // never taken for a number
  r.means = loss_means(
      sums, 2,
      losses::available_metrics(losses::TeacherKind::kSampled, {.divergence = losses::Divergence::kForwardKl}));
  json = step_json(r);
  EXPECT_EQ(json["estimates"], nlohmann::ordered_json::parse(R"(["loss", "soft"])"));
  for (const char* name : {"lower_bounds", "forward_kl", "reverse_kl", "teacher_entropy", "agreement", "teacher_ce"}) {
    EXPECT_FALSE(json.contains(name)) << name;
  }
}

TEST(StepJson, NonFiniteNumbersAreNull) {
  auto r = record();
  r.grad_norm = std::nan("");
  EXPECT_TRUE(step_json(r)["grad_norm"].is_null());
}

TEST(StepJson, GathersAreThereWhereUnitsAreGathered) {
  auto r = record();
  EXPECT_FALSE(step_json(r).contains("gathers"));
  r.gathers = 70;
  r.gathered_bytes = 123456789;
  EXPECT_EQ(step_json(r)["gathers"], 70);
  EXPECT_EQ(step_json(r)["gathered_bytes"], 123456789);
}

TEST(StepJson, AStepWithoutATargetHasNoPointOnAnyCurve) {
  auto r = record();
  r.means = loss_means(std::array<double, losses::kNumTokenMetrics>{}, 0, {});
  r.grad_norm = 0;
  r.empty_steps = 3;
  const auto json = step_json(r);
  for (const char* name : {"loss", "hard", "soft", "forward_kl", "agreement", "student_entropy", "grad_norm"}) {
    EXPECT_TRUE(json[name].is_null()) << name;
  }
  EXPECT_EQ(json["valid_tokens"], 0);
  EXPECT_EQ(json["empty_steps"], 3);
  EXPECT_EQ(json["skipped"], false);
}

TEST(RouterMeans, AreThoseOfTheSums) {
  // Entropy, routed tokens, loss, micro-batches; then the visits of 3 experts of each of 2 routers.
  const std::vector<double> sums{12, 8, 6, 2, /*router 0*/ 4, 4, 4, /*router 1*/ 0, 3, 9};
  const RouterMeans means = router_means(sums, 2);
  EXPECT_DOUBLE_EQ(means.entropy, 1.5);
  EXPECT_DOUBLE_EQ(means.aux_loss, 3);
  EXPECT_DOUBLE_EQ(means.load, (1 + 2.25) / 2);
  EXPECT_DOUBLE_EQ(means.highest_load, 2.25);
  EXPECT_EQ(means.unused_experts, 1);
  StepMetrics r = record();
  EXPECT_FALSE(step_json(r).contains("router_load"));
  r.routers = means;
  EXPECT_EQ(step_json(r)["router_highest_load"], 2.25);
  EXPECT_EQ(step_json(r)["router_unused_experts"], 1);
}

} // namespace
} // namespace distill::metrics
