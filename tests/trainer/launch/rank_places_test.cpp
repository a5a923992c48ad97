#include "trainer/launch/rank_places.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace distill::launch {
namespace {

// Returns the place of rank 1 after a process that became it has done `work` and was killed.
std::string place_after(const std::function<void()>& work) {
  const auto places = RankPlaces::create(3).value();
  const pid_t pid = ::fork();
  if (pid == 0) {
    places->hand_to(1);
    work();
    ::raise(SIGKILL);
  }
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(places->place(0), "while starting");
  EXPECT_EQ(places->place(2), "while starting");
  return places->place(1);
}

TEST(RankPlaces, OutliveTheRank) {
  EXPECT_EQ(place_after([] {}), "while starting");
  EXPECT_EQ(place_after([] { report_place(0, "loading weights"); }), "while loading weights");
  EXPECT_EQ(
      place_after([] {
        for (int64_t step = 1; step <= 7; ++step) {
          report_place(step, "teacher");
          report_place(step, "backward");
        }
      }),
      "in step 7, phase backward");
}

TEST(RankPlaces, ALongPhaseIsCut) {
  static const std::string phase(500, 'x');
  const std::string found = place_after([] { report_place(0, phase.c_str()); });
  EXPECT_TRUE(found.starts_with("while xxx") && found.size() < 100) << found;
}

TEST(RankPlaces, AProcessThatIsNoRankReportsNothing) {
  ::unsetenv("DISTILL_PLACES");
  report_place(3, "backward"); // must not crash
}

} // namespace
} // namespace distill::launch
