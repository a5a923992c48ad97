#include "trainer/launch/death.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace distill::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Death death(int signal, std::optional<int64_t> kills = 0) {
  return {"rank 2", signal, /*dumped_core=*/false, "in step 12, phase backward", kills};
}

TEST(Death, ByAForeignSignalNamesRankSignalAndPlace) {
  EXPECT_THAT(
      killed_text(death(SIGKILL)),
      AllOf(
          HasSubstr("rank 2 was killed by signal 9 (SIGKILL: Killed) in step 12, phase backward"),
          HasSubstr("distill did not send it"), Not(HasSubstr("dmesg"))));
  EXPECT_THAT(killed_text(death(SIGSEGV)), HasSubstr("the program itself failed"));
  EXPECT_THAT(killed_text({"the process", SIGKILL, false, "", 0}), HasSubstr("the process was killed by signal 9"));
}

TEST(Death, ByTheOutOfMemoryKillerSaysHowToCheck) {
  EXPECT_THAT(
      killed_text(death(SIGKILL, 1)),
      AllOf(HasSubstr("has ended 1 process of this machine for lack of host memory"), HasSubstr("dmesg -T")));
  EXPECT_THAT(
      killed_text(death(SIGKILL, std::nullopt)), // a kernel that does not count
      AllOf(HasSubstr("dmesg -T"), HasSubstr("distill did not send it")));
}

TEST(Death, ByDistillItselfReadsDifferently) {
  const std::string text = ended_text(death(SIGKILL), "rank 0");
  EXPECT_THAT(text, AllOf(HasSubstr("rank 2 was ended by distill"), HasSubstr("since rank 0 had failed")));
  EXPECT_THAT(text, Not(HasSubstr("killed by")));
}

TEST(OutOfMemoryKills, AreCountedByTheKernel) {
  const auto kills = out_of_memory_kills();
  EXPECT_TRUE(!kills || *kills >= 0);
  EXPECT_EQ(out_of_memory_kills_since(std::nullopt), std::nullopt);
  if (kills) {
    EXPECT_GE(out_of_memory_kills_since(kills).value(), 0);
  }
}

} // namespace
} // namespace distill::launch
