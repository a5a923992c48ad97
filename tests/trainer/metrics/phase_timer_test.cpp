#include "trainer/metrics/phase_timer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

namespace distill::metrics {
namespace {

void pass_milliseconds(int64_t count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(count));
}

double of(const PhaseSeconds& seconds, Phase phase) {
  return seconds[static_cast<size_t>(phase)];
}

TEST(PhaseTimer, WaitsCountToCommunicationAndThePhaseGoesOnAfterThem) {
  PhaseTimer timer(at::kCPU);
  timer.waiting(true); // between steps: nobody's
  timer.waiting(false);
  timer.begin(Phase::kForward);
  pass_milliseconds(10);
  timer.waiting(true);
  pass_milliseconds(30);
  timer.waiting(false);
  pass_milliseconds(10);
  timer.begin(Phase::kBackward);
  timer.end_step();
  const PhaseSeconds seconds = timer.take();
  EXPECT_GE(of(seconds, Phase::kForward), 0.020);
  EXPECT_GE(of(seconds, Phase::kCommunication), 0.030);
  EXPECT_LT(of(seconds, Phase::kBackward), 0.010);
  EXPECT_EQ(of(seconds, Phase::kTeacher), 0);
}

// However late the host reads the steps: both of them at the end, as the last ones of a run are.
TEST(PhaseTimer, AStepReachesFromTheEndOfTheOneBeforeToItsOwn) {
  PhaseTimer timer(at::kCPU);
  pass_milliseconds(20); // before the first
  timer.begin_step();
  timer.begin(Phase::kForward);
  pass_milliseconds(10);
  timer.end_step();
  pass_milliseconds(30); // for data
  timer.begin(Phase::kForward);
  pass_milliseconds(10);
  timer.end_step();
  pass_milliseconds(60); // an evaluation
  timer.begin_step();
  timer.begin(Phase::kForward);
  timer.end_step();
  const PhaseSeconds first = timer.take(), second = timer.take(), third = timer.take();
  EXPECT_GE(total(first), 0.010);
  EXPECT_LT(total(first), 0.020);
  EXPECT_GE(of(second, Phase::kData), 0.030);
  EXPECT_GE(total(second), 0.040);
  EXPECT_LT(total(third), 0.030);
}

TEST(PhaseTimer, StepsAreTakenInTheirOrder) {
  PhaseTimer timer(at::kCPU);
  for (const Phase phase : {Phase::kTeacher, Phase::kHead}) {
    timer.begin(phase);
    pass_milliseconds(2);
    timer.end_step();
  }
  EXPECT_GT(of(timer.take(), Phase::kTeacher), 0);
  EXPECT_GT(of(timer.take(), Phase::kHead), 0);
  const PhaseSeconds none = timer.take();
  EXPECT_EQ(std::accumulate(none.begin(), none.end(), 0.0), 0);
}

} // namespace
} // namespace distill::metrics
