#include "trainer/launch/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>

namespace distill::launch {
namespace {

TEST(StopSignal, RemembersTheSignalAndRestoresTheHandlers) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    const StopSignal stop;
    EXPECT_EQ(stop.received(), 0);
    std::raise(number);
    EXPECT_EQ(stop.received(), number);
  }
  struct sigaction after {};
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(StopSignal, SecondInterruptEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        std::raise(SIGINT);
        std::raise(SIGINT);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGINT), "");
}

} // namespace
} // namespace distill::launch
