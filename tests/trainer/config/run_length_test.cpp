#include "trainer/config/run_length.h"

#include <gtest/gtest.h>

namespace distill::config {
namespace {

Config with_batch(int64_t global_batch_size, int64_t seq_len) {
  Config config;
  config.data.seq_len = seq_len;
  config.train.global_batch_size = global_batch_size;
  return config;
}

TEST(RunLength, StepsAreWhatTheyAre) {
  Config config = with_batch(4, 100);
  EXPECT_EQ(known_steps(config), std::nullopt);
  config.train.steps = 5;
  EXPECT_EQ(total_steps(config, 1000), 5);
  EXPECT_EQ(total_steps(config, 1000, {7, 2800}), 5);
  EXPECT_EQ(known_steps(config), 5);
}

TEST(RunLength, RoundsATokenBudgetUp) {
  Config config = with_batch(4, 100);
  config.train.tokens = 400;
  EXPECT_EQ(total_steps(config, 1000), 1);
  config.train.tokens = 401;
  EXPECT_EQ(total_steps(config, 1000), 2);
  EXPECT_EQ(known_steps(config), 2);
}

TEST(RunLength, EpochsArePassesOverAllSequencesRoundedUpToWholeSteps) {
  Config config = with_batch(4, 100);
  config.train.epochs = 1;
  EXPECT_EQ(known_steps(config), std::nullopt);
  EXPECT_EQ(total_steps(config, 12), 3);
  EXPECT_EQ(total_steps(config, 13), 4);
  config.train.epochs = 2;
  EXPECT_EQ(total_steps(config, 13), 7); // 26 sequences
  config.train.epochs = 0.5;
  EXPECT_EQ(total_steps(config, 13), 2); // 7 sequences
  config.train.epochs = 1e-6;
  EXPECT_EQ(total_steps(config, 13), 1);
  config.train.epochs = 0.1;
  config.train.global_batch_size = 1;
  EXPECT_EQ(total_steps(config, 30), 3); // 0.1 is a little more than a tenth
}

TEST(RunLength, EpochsBeyondAllTokensDoNotOverflow) {
  Config config = with_batch(1, 1 << 20);
  config.train.epochs = 1e9;
  EXPECT_GT(total_steps(config, int64_t{1} << 32), 1'000'000);
}

TEST(RunLength, AResumedRunTakesWhatIsLeft) {
  Config config = with_batch(4, 100);
  config.train.epochs = 2;
  EXPECT_EQ(total_steps(config, 13), 7);
  EXPECT_EQ(total_steps(config, 13, {3, 1200}), 7); // the same batch: the same end
  config.train.global_batch_size = 8;
  EXPECT_EQ(total_steps(config, 13, {3, 1200}), 3 + 2); // 14 of 26 sequences are left
  config.train.epochs = 1;
  EXPECT_EQ(total_steps(config, 13, {4, 1600}), 4); // done already
}

TEST(ScheduleFault, NamesTheKeyThatTheStepsDoNotAllow) {
  SchedulerSection scheduler;
  scheduler.warmup_steps = 5;
  EXPECT_EQ(schedule_fault(scheduler, 6), std::nullopt);
  EXPECT_EQ(schedule_fault(scheduler, 5)->key, "scheduler.warmup_steps");
  scheduler.type = LrSchedule::kWsd;
  scheduler.decay_steps = 3;
  EXPECT_EQ(schedule_fault(scheduler, 7)->key, "scheduler.decay_steps");
  EXPECT_EQ(schedule_fault(scheduler, 8), std::nullopt);
}

} // namespace
} // namespace distill::config
