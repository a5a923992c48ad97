#include "trainer/launch/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>

namespace distill::launch {
namespace {

TEST(StopSignal, RemembersTheSignalAndRestoresTheHandlers) {
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
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
      testing::KilledBySignal(SIGINT), "^$");
}

TEST(StopSignal, EachNoticeIsPrintedOnce) {
  EXPECT_EXIT(
      {
        const StopSignal stop("saving");
        std::raise(SIGINT);
        std::raise(SIGTERM); // nothing more to say
        std::raise(SIGINT);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGINT),
      "^\n?distill: SIGINT: saving; a second SIGINT .* ends at once, unsaved\n"
      "distill: second SIGINT: ending at once[^\n]*\n$");
  EXPECT_EXIT(
      {
        const StopSignal stop("saving");
        std::raise(SIGTERM);
        std::raise(SIGINT); // the first one
        std::_Exit(stop.received());
      },
      testing::ExitedWithCode(SIGINT), "^\n?distill: SIGTERM: saving\n$");
}

TEST(StopSignal, AHangupThatIsIgnoredStaysIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);
        const StopSignal stop("saving");
        std::raise(SIGHUP);
        std::_Exit(stop.received());
      },
      testing::ExitedWithCode(0), "^$");
}

} // namespace
} // namespace distill::launch
