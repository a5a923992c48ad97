#include "trainer/onpolicy/round_stats.h"

#include <gmock/gmock.h>

#include <cmath>

namespace distill::onpolicy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RoundStats, AreWhatAHandCounts) {
  const std::map<int64_t, Completion> completions{
      {0, {{1, 2, 3, 4, 1, 2, 3, 4, 1}, true, std::vector<double>(9, -0.5)}}, // 6 4-grams, 2 of them again
      {1, {{1, 2, 3, 4}, false, std::vector<double>(4, -1.0)}}, // one that the other has, too
      {2, {{7}, false, {-3.5}}}};
  const RoundStats stats = round_stats(completions);
  EXPECT_EQ(stats.completions, 3);
  EXPECT_EQ(stats.tokens, 14);
  EXPECT_EQ(stats.shortest, 1);
  EXPECT_EQ(stats.median, 4);
  EXPECT_EQ(stats.longest, 9);
  EXPECT_DOUBLE_EQ(stats.truncated, 1.0 / 3);
  EXPECT_DOUBLE_EQ(stats.repeated, 2.0 / 7);
  EXPECT_DOUBLE_EQ(stats.distinct_1, 5.0 / 14);
  EXPECT_DOUBLE_EQ(stats.distinct_4, 4.0 / 7);
  EXPECT_DOUBLE_EQ(stats.entropy, (4.5 + 4 + 3.5) / 14);
  EXPECT_THAT(stats_warnings(stats), IsEmpty());
  EXPECT_EQ(stats_json(stats)["lengths"]["max"], 9);
}

TEST(RoundStats, WhatMeansTroubleHasAWarningWithItsCause) {
  std::map<int64_t, Completion> same;
  for (int64_t id = 0; id < 10; ++id) {
    same[id] = {{5, 5, 5, 5, 5, 5, 5, 5}, true, std::vector<double>(8, -0.001)};
  }
  EXPECT_THAT(
      stats_warnings(round_stats(same)),
      ElementsAre(
          HasSubstr("100% of the completions are truncated: onpolicy.max_new_tokens"),
          HasSubstr("80% of the 4-grams of a completion are repetitions"), HasSubstr("only 2% of the round's 4-grams"),
          HasSubstr("the entropy of the student's words is 0.001 nats")));
}

TEST(RoundStats, WithoutLogProbabilitiesTheEntropyIsNotKnown) {
  const RoundStats stats = round_stats({{0, {{1, 2}, false, {-1, -1}}}, {1, {{3, 4}, false, {}}}});
  EXPECT_TRUE(std::isnan(stats.entropy));
  EXPECT_TRUE(stats_json(stats)["entropy"].is_null());
  EXPECT_THAT(stats_line(stats), ::testing::Not(HasSubstr("entropy")));
  EXPECT_THAT(stats_warnings(stats), IsEmpty());
}

} // namespace
} // namespace distill::onpolicy
