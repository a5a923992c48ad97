#include "trainer/metrics/float8_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace distill::metrics {
namespace {

// The step at which it is found; 0: never.
int first_found(Float8Check check, const std::function<double(int)>& kl, int steps = 400) {
  for (int step = 1; step <= steps; ++step) {
    if (check.step(kl(step))) {
      return step;
    }
  }
  return 0;
}

TEST(Float8Check, FindsAMeanBelowTenTimesTheError) {
  EXPECT_EQ(first_found(Float8Check(0.01), [](int) { return 0.099; }), 50);
  EXPECT_EQ(first_found(Float8Check(0.01), [](int) { return 0.101; }), 0);
  // Falls from 1 by 0.01 a step: the mean over the last 50 is at 0.1 when the newest is at -0.145.
  const int found = first_found(Float8Check(0.01), [](int step) { return 1 - 0.01 * step; });
  EXPECT_GE(found, 114);
  EXPECT_LE(found, 116);
}

TEST(Float8Check, IsSaidOnce) {
  Float8Check check(0.01);
  int found = 0;
  for (int step = 0; step < 300; ++step) {
    found += check.step(0.05) ? 1 : 0;
  }
  EXPECT_EQ(found, 1);
}

TEST(Float8Check, WithoutAMeasuredErrorNothingIsChecked) {
  EXPECT_EQ(first_found(Float8Check(0), [](int) { return 0.0; }), 0);
}

TEST(Float8Check, StepsThatAreNotFiniteAreLeftOut) {
  EXPECT_EQ(first_found(Float8Check(0.01), [](int step) { return step % 2 == 0 ? std::nan("") : 0.05; }), 99);
}

} // namespace
} // namespace distill::metrics
