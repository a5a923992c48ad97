#include "trainer/run_folder/run_folder.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

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
    return std::string(check_run_folder(dir_, mode).message());
  }

  std::string dir_;
};

TEST_F(RunFolderTest, AFreshRunWantsNoFolderOrAnEmptyOne) {
  EXPECT_TRUE(check_run_folder(dir_, StartMode::kFresh).ok());
  fs::create_directories(dir_);
  EXPECT_TRUE(check_run_folder(dir_, StartMode::kFresh).ok());
  add("metrics.jsonl");
  EXPECT_THAT(refusal(StartMode::kFresh), HasSubstr("--resume"));
}

TEST_F(RunFolderTest, ResumingWantsSomethingToResume) {
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("does not exist"));
  fs::create_directories(dir_);
  EXPECT_THAT(refusal(StartMode::kResume), HasSubstr("is empty"));
  add("metrics.jsonl");
  EXPECT_TRUE(check_run_folder(dir_, StartMode::kResume).ok());
}

TEST_F(RunFolderTest, OverwritingRemovesWhatARunLeftAndNothingElse) {
  add("metrics.jsonl");
  add("trace-rank0.json");
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-4");
  EXPECT_TRUE(check_run_folder(dir_, StartMode::kOverwrite).ok());
  EXPECT_TRUE(fs::exists(fs::path(dir_) / "metrics.jsonl")) << "checking changes nothing";
  EXPECT_TRUE(open_run_folder(dir_, StartMode::kOverwrite).ok());
  EXPECT_TRUE(fs::is_empty(dir_));
  add("thesis.tex");
  EXPECT_THAT(refusal(StartMode::kOverwrite), HasSubstr("thesis.tex"));
  EXPECT_TRUE(open_run_folder(dir_, StartMode::kOverwrite).ok());
  EXPECT_TRUE(fs::exists(fs::path(dir_) / "thesis.tex"));
}

TEST_F(RunFolderTest, AFileInItsPlaceIsAnError) {
  std::ofstream(dir_) << "content";
  for (const StartMode mode : {StartMode::kFresh, StartMode::kResume, StartMode::kOverwrite}) {
    EXPECT_THAT(refusal(mode), HasSubstr("expected a folder, found a file"));
  }
}

} // namespace
} // namespace distill::trainer
