#include "trainer/setup/disk_space.h"

#include <gmock/gmock.h>

#include "tests/trainer/hf/temporary_folder.h"
#include "tests/trainer/models/llama_like.h"
#include "trainer/models/layout.h"

namespace distill::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DiskSpaceTest : public hf::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    config_.checkpoint.every = 10;
    config_.checkpoint.keep = 2;
    config_.checkpoint.model_dtype = config::StoredDtype::kBFloat16;
    student_ = models::llama_like(
        {.vocab = 128, .hidden = 64, .ffn = 128, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16});
    parameters_ = models::parameter_count(models::unit_layouts(student_));
  }
  DiskNeed need() const {
    return disk_need(config_, student_, /*steps=*/100);
  }

  config::Config config_;
  models::ModelConfig student_;
  int64_t parameters_ = 0;
};

TEST_F(DiskSpaceTest, ARunNeedsTheKeptCheckpointsOneMoreAndTheModel) {
  EXPECT_GE(need().checkpoint_bytes, 12 * parameters_);
  EXPECT_LE(need().checkpoint_bytes, 12 * parameters_ + 12 * 64 * 100) << "gaps between parameters";
  EXPECT_EQ(need().checkpoints, 3);
  EXPECT_EQ(need().model_bytes, 2 * parameters_);
  EXPECT_EQ(need().bytes(), 3 * need().checkpoint_bytes + need().model_bytes);
}

TEST_F(DiskSpaceTest, AShortRunNeedsNoMoreThanItWrites) {
  config_.checkpoint.every = 0;
  EXPECT_EQ(need().checkpoints, 1) << "at the end";
  config_.checkpoint.at_end = false;
  EXPECT_EQ(need().checkpoints, 0);
  EXPECT_EQ(need().bytes(), 0);
  config_.checkpoint.every = 100;
  EXPECT_EQ(need().checkpoints, 1);
  config_.checkpoint.at_end = true;
  EXPECT_EQ(need().checkpoints, 1) << "the last periodic one is the one at the end";
  config_.checkpoint.every = 70;
  EXPECT_EQ(need().checkpoints, 2);
}

TEST_F(DiskSpaceTest, TheNearestFolderThatExistsIsAskedAndOldCheckpointsCount) {
  EXPECT_EQ(disk_space(path("a/b/run")).place, root());
  EXPECT_GT(disk_space(path("a/b/run")).available_bytes, 0);
  write("run/checkpoints/step-10/rank-00000.safetensors", std::string(5000, 'x'));
  write("run/checkpoints/step-20/rank-00000.safetensors", std::string(3000, 'x'));
  write("run/checkpoints/step-5.damaged/rank-00000.safetensors", std::string(700, 'x'));
  EXPECT_EQ(disk_space(path("run")).place, path("run"));
  EXPECT_EQ(disk_space(path("run")).reused_bytes, 8000);
}

TEST(DiskWarningTest, SaysBothNumbersAndWhatDoesNotFit) {
  const DiskNeed need{2'000'000'000, 3, 500'000'000};
  EXPECT_EQ(disk_warning(need, {"/data", 6'500'000'000, 0}), "");
  EXPECT_EQ(disk_warning(need, {"/data", 500'000'000, 6'000'000'000}), "") << "the old checkpoints are replaced";
  EXPECT_EQ(disk_warning(need, {"/data", -1, 0}), "") << "not known";
  EXPECT_THAT(
      disk_warning(need, {"/data", 6'400'000'000, 0}),
      AllOf(
          HasSubstr("expected 6.5 GB"), HasSubstr("3 checkpoints of 2 GB"), HasSubstr("the model of 0.5 GB"),
          HasSubstr("found 6.4 GB in /data"), HasSubstr("a later checkpoint, or the model, will not fit")));
  EXPECT_THAT(disk_warning(need, {"/data", 1'900'000'000, 0}), HasSubstr("not even the first checkpoint fits"));
  EXPECT_THAT(disk_line(need, {"/data", 1'900'000'000, 0}), AllOf(HasSubstr("6.5 GB"), HasSubstr("1.9 GB")));
}

} // namespace
} // namespace distill::trainer
