#include "trainer/run_folder/run_folder.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/trainer/hf/temporary_folder.h"
#include "tests/trainer/run_folder/lock_process.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunFolderTest : public hf::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    dir_ = path("run");
  }
  void add(const std::string& name) const {
    fs::create_directories(dir_);
    std::ofstream(fs::path(dir_) / name) << "content";
  }
  std::string refusal(StartMode mode) const {
    const std::string checked = std::string(RunFolder::check(dir_, mode).message());
    EXPECT_EQ(claim(mode).status().message(), checked);
    return checked;
  }
  absl::StatusOr<std::shared_ptr<RunFolder>> claim(StartMode mode, const std::string& parent_run = "") const {
    LockOptions options;
    options.busy = std::chrono::milliseconds(50);
    return RunFolder::claim(dir_, mode, parent_run, options);
  }

  std::string dir_;
};

TEST_F(RunFolderTest, AFreshRunWantsNoFolderOrAnEmptyOne) {
  EXPECT_EQ(refusal(StartMode::kFresh), "");
  fs::create_directories(dir_);
  EXPECT_EQ(refusal(StartMode::kFresh), "");
  add("metrics.jsonl");
  EXPECT_THAT(refusal(StartMode::kFresh), HasSubstr("--resume"));
  EXPECT_THAT(names(), ElementsAre("run", "run/metrics.jsonl")) << "what is refused is left as it is";
}

TEST_F(RunFolderTest, ResumingWantsSomethingToResume) {
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("does not exist"));
  fs::create_directories(dir_);
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("is empty"));
  add("metrics.jsonl");
  EXPECT_EQ(refusal(StartMode::kResume), "");
}

TEST_F(RunFolderTest, OverwritingRemovesWhatARunLeftAndNothingElse) {
  add("metrics.jsonl");
  add("trace-rank0.json");
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-4");
  {
    const auto folder = claim(StartMode::kOverwrite).value();
    EXPECT_TRUE(fs::exists(fs::path(dir_) / "metrics.jsonl")) << "claiming changes nothing";
    EXPECT_TRUE(folder->remove_earlier_run().ok());
    EXPECT_THAT(names(), ElementsAre("run", "run/.lock")) << "the claim lasts while the files are removed";
    EXPECT_THAT(std::string(claim(StartMode::kOverwrite).status().message()), HasSubstr("in use by process"));
  }
  EXPECT_TRUE(fs::is_empty(dir_));
  add("thesis.tex");
  EXPECT_THAT(refusal(StartMode::kOverwrite), HasSubstr("thesis.tex"));
  EXPECT_TRUE(fs::exists(fs::path(dir_) / "thesis.tex"));
}

TEST_F(RunFolderTest, OtherModesRemoveNothing) {
  add("metrics.jsonl");
  const auto folder = claim(StartMode::kResume).value();
  EXPECT_TRUE(folder->remove_earlier_run().ok());
  EXPECT_TRUE(fs::exists(fs::path(dir_) / "metrics.jsonl"));
}

TEST_F(RunFolderTest, AFileInItsPlaceIsAnError) {
  std::ofstream(dir_) << "content";
  for (const StartMode mode : {StartMode::kFresh, StartMode::kResume, StartMode::kOverwrite}) {
    EXPECT_THAT(refusal(mode), HasSubstr("is a file, where a folder is needed"));
  }
}

TEST_F(RunFolderTest, AFolderInUseIsRefusedInEveryMode) {
  const auto folder = claim(StartMode::kFresh).value();
  add("metrics.jsonl");
  for (const StartMode mode : {StartMode::kFresh, StartMode::kResume, StartMode::kOverwrite}) {
    EXPECT_THAT(refusal(mode), HasSubstr("in use by process " + std::to_string(::getpid())));
  }
  EXPECT_THAT(names(), ElementsAre("run", "run/.lock", "run/metrics.jsonl"));
}

TEST_F(RunFolderTest, AClaimThatWroteNothingLeavesNoFolder) {
  dir_ = path("new/run");
  ASSERT_TRUE(claim(StartMode::kFresh).ok());
  EXPECT_THAT(names(), IsEmpty());
  fs::create_directories(dir_);
  ASSERT_TRUE(claim(StartMode::kFresh).ok());
  EXPECT_THAT(names(), ElementsAre("new", "new/run")) << "it was there before";
}

TEST_F(RunFolderTest, WhatAKilledStartLeftIsAnEmptyFolder) {
  LockProcess killed([&] { return (new auto(claim(StartMode::kFresh)))->ok(); });
  ASSERT_TRUE(killed.result());
  killed.kill();
  EXPECT_THAT(names(), ElementsAre("run", "run/.lock"));
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("is empty"));
  const auto folder = claim(StartMode::kFresh).value();
  EXPECT_THAT(folder->notes(), ElementsAre(HasSubstr("taken over")));
}

TEST_F(RunFolderTest, OneOfManyFirstStartsWins) {
  for (int round = 0; round < 10; ++round) {
    std::vector<std::unique_ptr<LockProcess>> processes;
    for (int i = 0; i < 6; ++i) {
      processes.push_back(std::make_unique<LockProcess>([&] { return (new auto(claim(StartMode::kFresh)))->ok(); }));
    }
    int winners = 0;
    for (const auto& process : processes) {
      winners += process->result() ? 1 : 0;
    }
    ASSERT_EQ(winners, 1) << "round " << round;
    processes.clear();
    fs::remove_all(dir_);
  }
}

TEST_F(RunFolderTest, AReplayClaimsTheRunThatItLiesIn) {
  add("metrics.jsonl");
  const std::string run = dir_;
  const auto training = claim(StartMode::kResume).value();
  dir_ = run + "/replay-7";
  EXPECT_THAT(
      std::string(claim(StartMode::kOverwrite, run).status().message()), HasSubstr("run.dir: " + run + " is in use"));
  EXPECT_FALSE(fs::exists(dir_));
}

TEST_F(RunFolderTest, ARunIsNotOverwrittenWhileItIsReplayed) {
  add("metrics.jsonl");
  const std::string run = dir_;
  dir_ = run + "/replay-7";
  const auto replay = claim(StartMode::kOverwrite, run).value();
  dir_ = run;
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("run.dir: " + run + " is in use"));
  EXPECT_THAT(refusal(StartMode::kOverwrite), HasSubstr("run.dir: " + run + " is in use"));
}

TEST_F(RunFolderTest, AReplayFolderInUseIsNotOverwritten) {
  add("metrics.jsonl");
  const std::string run = dir_;
  dir_ = run + "/replay-7";
  const auto other = claim(StartMode::kFresh).value(); // a job whose own run.dir it is
  dir_ = run;
  EXPECT_THAT(refusal(StartMode::kOverwrite), HasSubstr("run.dir: " + run + "/replay-7 is in use"));
}

} // namespace
} // namespace distill::trainer
