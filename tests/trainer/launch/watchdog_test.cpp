#include "trainer/launch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "trainer/launch/thread_stacks.h"

namespace distill::launch {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::atomic<bool> keep_waiting{true};

[[gnu::noinline]] void a_function_that_waits() {
  while (keep_waiting) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  asm volatile(""); // no tail call
}

class WatchdogTest : public testing::Test {
 protected:
  std::string stacks_ = testing::TempDir() + "watchdog_test_stacks.txt";

  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  WatchdogOptions options(milliseconds step_timeout, milliseconds grace) const {
    return {"rank 3", step_timeout, grace, stacks_, [] { std::fputs("more was written\n", stderr); }};
  }
  std::string stacks() const {
    std::ifstream file(stacks_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(WatchdogTest, AProcessWithoutProgressEndsWithItsPlaceAndItsStacks) {
  std::filesystem::remove(stacks_);
  const auto hang = [this] {
    const StopSignal stop;
    Watchdog watchdog(options(milliseconds(200), milliseconds(0)), stop);
    watchdog.report_progress(7, "backward");
    a_function_that_waits();
  };
  EXPECT_EXIT(
      hang(), testing::ExitedWithCode(1), "rank 3: no progress for .*run.step_timeout_s.*step 7, phase backward");
  EXPECT_THAT(stacks(), testing::AllOf(HasSubstr("step 7, phase backward"), HasSubstr("a_function_that_waits")));
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1), "more was written");
}

TEST_F(WatchdogTest, ProgressKeepsTheProcessAlive) {
  const StopSignal stop;
  Watchdog watchdog(options(milliseconds(300), milliseconds(100)), stop);
  for (int step = 0; step < 40; ++step) {
    watchdog.report_progress(step, "forward");
    std::this_thread::sleep_for(milliseconds(20));
  }
}

TEST_F(WatchdogTest, AProcessThatDoesNotStopWithinItsGraceIsEnded) {
  const auto hang = [this] {
    const StopSignal stop;
    Watchdog watchdog(options(milliseconds(0), milliseconds(200)), stop);
    std::raise(SIGTERM);
    for (int step = 0;; ++step) { // progress does not help
      watchdog.report_progress(step, "forward");
      std::this_thread::sleep_for(milliseconds(5));
    }
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1), "did not stop within run.grace_s, 0.2 s, after signal 15");
}

TEST_F(WatchdogTest, StacksOfEveryThreadAreThere) {
  prepare_thread_stacks();
  keep_waiting = true;
  std::thread other(a_function_that_waits);
  std::this_thread::sleep_for(milliseconds(50));
  const std::string text = thread_stacks();
  keep_waiting = false;
  other.join();
  EXPECT_THAT(text, HasSubstr("a_function_that_waits"));
  EXPECT_THAT(text, HasSubstr("thread_stacks")) << "the caller's own";
  EXPECT_EQ(text.find("does not answer"), std::string::npos) << text;
}

} // namespace
} // namespace distill::launch
