#include "losses/kernel_choice.h"

#include <gtest/gtest.h>

namespace distill::losses {
namespace {

TEST(KernelChoice, TriesEachInTurnThenRunsTheFastest) {
  KernelChoice choice(3);
  const std::vector<float> ms = {2.0F, 1.0F, 3.0F};
  for (size_t call = 0; call < 3 * KernelChoice::kRounds; ++call) {
    const KernelChoice::Turn turn = choice.next();
    EXPECT_TRUE(turn.timed);
    EXPECT_EQ(turn.candidate, call % 3);
    choice.record(turn.candidate, ms[turn.candidate]);
  }
  const KernelChoice::Turn turn = choice.next();
  EXPECT_FALSE(turn.timed);
  EXPECT_EQ(turn.candidate, 1);
}

TEST(KernelChoice, TheLeastTimeCounts) {
  KernelChoice choice(2);
  choice.record(0, 100.0F); // its first launch
  choice.record(1, 5.0F);
  choice.record(0, 4.0F);
  choice.record(0, 50.0F);
  EXPECT_EQ(choice.fastest(), 0);
}

TEST(KernelChoice, RunsTheFastestKnownWhileTimesAreMissing) {
  KernelChoice choice(2);
  for (size_t call = 0; call < 2 * KernelChoice::kRounds; ++call) {
    choice.next();
  }
  EXPECT_EQ(choice.next().candidate, 0); // nothing is known: cuBLAS's own choice
  choice.record(1, 1.0F);
  EXPECT_EQ(choice.next().candidate, 1);
  EXPECT_FALSE(choice.next().timed);
}

TEST(KernelChoice, OneCandidateIsNeverTimed) {
  KernelChoice choice(1);
  EXPECT_FALSE(choice.next().timed);
  EXPECT_EQ(choice.next().candidate, 0);
}

} // namespace
} // namespace distill::losses
