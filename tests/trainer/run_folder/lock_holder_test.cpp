#include "trainer/run_folder/lock_holder.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

namespace distill::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LockHolderTest, ReadsWhatItWrites) {
  const LockHolder own = LockHolder::this_process();
  const auto again = LockHolder::parse(own.json());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->json(), own.json());
  EXPECT_EQ(again->pid, ::getpid());
  EXPECT_TRUE(again->same_kernel());
  EXPECT_EQ(process_state(*again), ProcessState::kRunning);
  EXPECT_THAT(
      again->text(),
      AllOf(
          HasSubstr("process " + std::to_string(::getpid())), HasSubstr("on host " + own.host),
          HasSubstr("since " + own.since), HasSubstr("run_folder_test")));
}

TEST(LockHolderTest, ATextThatIsNoHolderIsNone) {
  for (const char* text :
       {"", "{", "[]", "4711", "{}", R"({"host": "a"})", R"({"host": "a", "pid": "4711"})",
        R"({"host": "a", "pid": -1})", R"({"host": 7, "pid": 4711})", R"({"host": "a", "pid": 4711, "pid": 4711})"}) {
    EXPECT_FALSE(LockHolder::parse(text).has_value()) << text;
  }
}

TEST(LockHolderTest, ShowsAStrangersTextWithoutControlCharacters) {
  const auto holder = LockHolder::parse(R"({"host": "a\u001b[2J", "pid": 4711, "command": "b\nc"})");
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->text(), "process 4711 on host a\\033[2J since  (b\\nc)");
}

TEST(LockHolderTest, KnowsAProcessThatIsGoneFromALaterOneWithItsNumber) {
  LockHolder holder = LockHolder::this_process();
  holder.process_start -= 1; // an earlier process
  EXPECT_EQ(process_state(holder), ProcessState::kGone);
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  siginfo_t ended;
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  holder.pid = child;
  EXPECT_NE(process_state(holder), ProcessState::kRunning) << "a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_state(holder), ProcessState::kGone);
}

TEST(LockHolderTest, AProcessOfAnotherHostCannotBeSeen) {
  LockHolder holder = LockHolder::this_process();
  holder.boot = "another";
  EXPECT_EQ(process_state(holder), ProcessState::kUnknown);
  holder = LockHolder::this_process();
  holder.pid_namespace += 1; // another container on this host
  EXPECT_EQ(process_state(holder), ProcessState::kUnknown);
  EXPECT_TRUE(holder.same_kernel());
}

} // namespace
} // namespace distill::trainer
