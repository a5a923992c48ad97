#include "trainer/training_data.h"

#include <gmock/gmock.h>

#include "tests/data/fixtures.h"

namespace distill::trainer {
namespace {

using checkpoint::DataStage;
using checkpoint::TrainState;
using enum data::PackingMode;

class TrainingDataTest : public data::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    data::testing::write_shard(
        path("a.dtok"), data::testing::spec(4000), data::testing::distinct_documents({40, 30, 20, 50, 40}));
  }
  TrainingData open(int64_t seq_len = 16) {
    data::DataOptions options;
    options.sources.push_back({path(shard_), 1.0});
    options.seq_len = seq_len;
    return TrainingData(data::testing::open(options));
  }

  std::string shard_ = "a.dtok";
};

// Without the identities, which are long.
std::vector<DataStage> lengths(std::vector<DataStage> stages) {
  for (DataStage& stage : stages) {
    stage.data = {};
  }
  return stages;
}

TEST_F(TrainingDataTest, ARunBeginsWithOneStageThatNamesItsData) {
  const TrainingData data = open();
  EXPECT_EQ(lengths(data.stages()), (std::vector<DataStage>{{0, 0, 16, kPack}}));
  EXPECT_EQ(data.stages()[0].data, data.identity(data.stages()[0]));
  EXPECT_EQ(data.stages()[0].data.sets, (std::vector<checkpoint::DataSetSize>{{path("a.dtok"), 5, 180}}));
  EXPECT_NE(data.stages()[0].data.text, open(32).stages()[0].data.text);
}

TEST_F(TrainingDataTest, AnotherLengthBeginsAStageAndTheSameOneGoesOn) {
  const TrainState state{.step = 2, .samples = 4, .data_stages = open(16).stages(), .train_samples = 4};
  TrainingData same = open(16), longer = open(32);
  EXPECT_TRUE(same.continue_from(state, "step-2")->empty());
  EXPECT_EQ(same.stages(), state.data_stages);
  EXPECT_EQ(longer.continue_from(state, "step-2")->size(), 1U); // a line for each source
  EXPECT_EQ(lengths(longer.stages()), (std::vector<DataStage>{{0, 0, 16, kPack}, {2, 4, 32, kPack}}));
  EXPECT_EQ(longer.stages()[0].data, checkpoint::DataIdentity()); // the next stage names the same data
  EXPECT_EQ(longer.stages()[1].data, open(32).stages()[0].data);
  // A stage in which nothing was read gives way to one of the first length.
  TrainingData back = open(16);
  ASSERT_TRUE(
      back.continue_from({.step = 2, .samples = 4, .data_stages = longer.stages(), .train_samples = 4}, "step-2").ok());
  EXPECT_EQ(back.stages(), state.data_stages);
}

TEST_F(TrainingDataTest, OtherDataBeginAStageWithTheirOwnOrderAndEpochs) {
  const std::vector<DataStage> first = open(32).stages();
  data::testing::write_shard(
      path("b.dtok"), data::testing::spec(4000), data::testing::distinct_documents({25, 60, 35, 20, 30, 10}));
  shard_ = "b.dtok";
  TrainingData alone = open(), later = open();
  TrainState state{.step = 5, .samples = 10, .tokens = 10 * 32, .data_stages = first, .train_samples = 10};
  const auto lines = later.continue_from(state, "step-5").value();
  EXPECT_THAT(lines, testing::ElementsAre(testing::HasSubstr("other data than before from sample 10 on")));
  EXPECT_EQ(lengths(later.stages()), (std::vector<DataStage>{{0, 0, 32, kPack}, {5, 10, 16, kPack}}));
  EXPECT_EQ(later.stages()[0].data, first[0].data);
  EXPECT_EQ(later.stages()[1].data, alone.stages()[0].data);
  for (int64_t sample = 0; sample < 25; ++sample) {
    EXPECT_TRUE(at::equal(
        data::testing::get(later.set(), 10 + sample, 1).tokens_BS,
        data::testing::get(alone.set(), sample, 1).tokens_BS))
        << sample;
  }
  EXPECT_FALSE(later.set().batch(9, 1).ok());

  // The stage goes on, and has two epochs of this data, of which four samples have been read.
  state = {.step = 7, .samples = 14, .tokens = 10 * 32 + 4 * 16, .data_stages = later.stages(), .train_samples = 14};
  TrainingData again = open();
  EXPECT_TRUE(again.continue_from(state, "step-7")->empty());
  EXPECT_EQ(again.stages(), later.stages());
  EXPECT_TRUE(
      at::equal(data::testing::get(again.set(), 14, 3).tokens_BS, data::testing::get(alone.set(), 4, 3).tokens_BS));
  config::Config config;
  config.data.seq_len = 16;
  config.train.global_batch_size = 2;
  config.train.epochs = 2;
  EXPECT_EQ(again.total_steps(config, state), 7 + (2 * alone.set().num_samples() - 4 + 1) / 2);
  config.train.epochs = 0;
  config.train.tokens = state.tokens + 5 * 2 * 16; // of the whole run
  EXPECT_EQ(again.total_steps(config, state), 7 + 5);

  // With another length comes first what is left of the epoch of this data; the data before do not count.
  TrainingData longer = open(32);
  ASSERT_TRUE(longer.continue_from(state, "step-7").ok());
  EXPECT_EQ(
      lengths(longer.stages()), (std::vector<DataStage>{{0, 0, 32, kPack}, {5, 10, 16, kPack}, {7, 14, 32, kPack}}));
  EXPECT_EQ(longer.stages()[0].data, first[0].data);
  EXPECT_EQ(longer.stages()[1].data, checkpoint::DataIdentity());
  EXPECT_FALSE(longer.set().batch(13, 1).ok());
  TrainingData rest = open(32);
  ASSERT_TRUE(
      rest.continue_from({.step = 2, .samples = 4, .data_stages = alone.stages(), .train_samples = 4}, "step-2").ok());
  EXPECT_TRUE(
      at::equal(data::testing::get(longer.set(), 14, 8).tokens_BS, data::testing::get(rest.set(), 4, 8).tokens_BS));
}

// The stage that is dropped leaves the identity of its data to the stage of the same data before it.
TEST_F(TrainingDataTest, OtherDataReplaceAStageInWhichNothingWasRead) {
  TrainingData longer = open(32);
  ASSERT_TRUE(
      longer.continue_from({.step = 2, .samples = 4, .data_stages = open(16).stages(), .train_samples = 4}, "step-2")
          .ok());
  data::testing::write_shard(
      path("b.dtok"), data::testing::spec(4000), data::testing::distinct_documents({25, 60, 35}));
  shard_ = "b.dtok";
  TrainingData other = open(16);
  ASSERT_TRUE(
      other.continue_from({.step = 2, .samples = 4, .data_stages = longer.stages(), .train_samples = 4}, "step-2")
          .ok());
  EXPECT_EQ(lengths(other.stages()), (std::vector<DataStage>{{0, 0, 16, kPack}, {2, 4, 16, kPack}}));
  EXPECT_EQ(other.stages()[0].data.sets, longer.stages()[1].data.sets);
  EXPECT_EQ(other.stages()[1].data, open(16).stages()[0].data);
}

} // namespace
} // namespace distill::trainer
