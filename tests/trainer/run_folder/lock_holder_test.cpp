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
  EXPECT_TRUE(again->is_on_this_host());
  EXPECT_FALSE(again->is_ending());
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

TEST(LockHolderTest, SeesThatAProcessIsEnding) {
  LockHolder holder = LockHolder::this_process();
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  siginfo_t ended;
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  holder.pid = child;
  EXPECT_TRUE(holder.is_ending()) << "a zombie";
  LockHolder other = holder;
  other.host = "node7";
  EXPECT_FALSE(other.is_ending());
  other = holder;
  other.pid_namespace += 1; // another container on this host
  EXPECT_FALSE(other.is_ending());
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(holder.is_ending()) << "it is gone";
}

} // namespace
} // namespace distill::trainer
