#include "trainer/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <numbers>

namespace distill::optim {
namespace {

using config::LrSchedule;
using enum config::LrSchedule;

config::SchedulerSection scheduler(LrSchedule type, int64_t warmup, double min_ratio = 0, int64_t decay = 0) {
  config::SchedulerSection section;
  section.type = type;
  section.warmup_steps = warmup;
  section.min_lr_ratio = min_ratio;
  section.decay_steps = decay;
  return section;
}

TEST(LearningRate, WarmUpRisesLinearlyFromTheFirstStep) {
  for (const LrSchedule type : {kConstant, kLinear, kCosine, kWsd}) {
    const auto section = scheduler(type, 4);
    EXPECT_DOUBLE_EQ(learning_rate(section, 2.0, 0, 20), 0.5) << base::enum_name(type);
    EXPECT_DOUBLE_EQ(learning_rate(section, 2.0, 1, 20), 1.0) << base::enum_name(type);
    EXPECT_DOUBLE_EQ(learning_rate(section, 2.0, 3, 20), 2.0) << base::enum_name(type);
    EXPECT_DOUBLE_EQ(learning_rate(section, 2.0, 4, 20), 2.0) << base::enum_name(type);
  }
}

TEST(LearningRate, TheStepAfterTheLastWouldHaveTheMinimumAndNoStepHasNone) {
  for (const LrSchedule type : {kLinear, kCosine, kWsd}) {
    EXPECT_NEAR(learning_rate(scheduler(type, 3, 0.1), 2.0, 50, 50), 0.2, 1e-12) << base::enum_name(type);
    EXPECT_GT(learning_rate(scheduler(type, 3, 0.1), 2.0, 49, 50), 0.2) << base::enum_name(type);
    for (const int64_t steps : {2, 3, 50}) {
      for (int64_t step = 0; step < steps; ++step) {
        EXPECT_GT(learning_rate(scheduler(type, 1), 2.0, step, steps), 0) << base::enum_name(type) << " " << step;
      }
    }
  }
  EXPECT_DOUBLE_EQ(learning_rate(scheduler(kConstant, 3, 0.1), 2.0, 49, 50), 2.0);
}

// transformers.get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup: progress (t - warmup) / (T - warmup).
TEST(LearningRate, DecaysAsTransformersDoes) {
  for (int64_t step = 5; step < 25; ++step) {
    const double progress = static_cast<double>(step - 5) / 20;
    EXPECT_NEAR(learning_rate(scheduler(kLinear, 5), 3.0, step, 25), 3.0 * (1 - progress), 1e-12) << step;
    EXPECT_NEAR(
        learning_rate(scheduler(kCosine, 5), 3.0, step, 25), 1.5 * (1 + std::cos(std::numbers::pi * progress)), 1e-12)
        << step;
  }
}

TEST(LearningRate, ShapesHalfWay) {
  EXPECT_DOUBLE_EQ(learning_rate(scheduler(kLinear, 0), 1.0, 50, 100), 0.5);
  EXPECT_NEAR(learning_rate(scheduler(kCosine, 0), 1.0, 50, 100), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(scheduler(kCosine, 0), 1.0, 25, 100), 0.5 * (1 + std::cos(std::numbers::pi / 4)), 1e-12);
}

TEST(LearningRate, WsdIsFlatUntilItsDecay) {
  const auto section = scheduler(kWsd, 10, 0, 20);
  for (int64_t step = 10; step <= 80; ++step) {
    EXPECT_DOUBLE_EQ(learning_rate(section, 3.0, step, 100), 3.0) << step;
  }
  EXPECT_LT(learning_rate(section, 3.0, 81, 100), 3.0);
  EXPECT_NEAR(learning_rate(section, 3.0, 99, 100), 3.0 / 20, 1e-12);
  // Unset, the decay takes the last tenth.
  EXPECT_DOUBLE_EQ(learning_rate(scheduler(kWsd, 0), 3.0, 90, 100), 3.0);
  EXPECT_LT(learning_rate(scheduler(kWsd, 0), 3.0, 91, 100), 3.0);
}

TEST(LearningRate, RunOfOneStepHasTheFullRate) {
  EXPECT_DOUBLE_EQ(learning_rate(scheduler(kCosine, 0), 1.0, 0, 1), 1.0);
}

} // namespace
} // namespace distill::optim
