#include "trainer/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

models::ModelConfig tiny_config() {
  models::ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 19;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 32;
  return config;
}

// A model and its optimizer after one step on random gradients.
struct TrainedModel {
  sharding::ModelShards model;
  optim::AdamW optimizer;

  explicit TrainedModel(int64_t seed) : model(tiny_config(), {.trainable = true}), optimizer(model, {}) {
    at::manual_seed(seed);
    for (int64_t i = 0; i < model.num_units(); ++i) {
      model.unit(i).master.normal_();
      model.unit(i).gradient.normal_();
    }
    optimizer.step(0.1, optim::measure_grad_norm(model, 1.0));
  }
  bool same_as(TrainedModel& other) {
    bool same = at::equal(optimizer.step_count(), other.optimizer.step_count());
    for (int64_t i = 0; i < model.num_units(); ++i) {
      same = same && at::equal(model.unit(i).master, other.model.unit(i).master) &&
          at::equal(optimizer.moments(i).exp_avg, other.optimizer.moments(i).exp_avg) &&
          at::equal(optimizer.moments(i).exp_avg_sq, other.optimizer.moments(i).exp_avg_sq);
    }
    return same;
  }
};

class CheckpointTest : public testing::Test {
 protected:
  std::string dir_ = testing::TempDir() + "checkpoint_test";
  RunIdentity identity_{"a model", "a data set"};
  TrainState state_{.step = 7, .samples = 56, .tokens = 5600, .skipped_total = 2, .skipped_in_row = 1};

  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  std::string save(TrainedModel& run, int64_t step, int64_t keep = 2) {
    state_.step = step;
    const auto folder = checkpoint::save(dir_, state_, identity_, run.model, run.optimizer, keep, {});
    EXPECT_TRUE(folder.ok()) << folder.status();
    return folder.value_or("");
  }
};

TEST_F(CheckpointTest, RoundTripIsBitForBit) {
  TrainedModel saved(1), other(2);
  ASSERT_FALSE(saved.same_as(other));
  const std::string folder = save(saved, 7);
  const auto state = load(folder, identity_, other.model, other.optimizer);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(*state, state_);
  EXPECT_TRUE(saved.same_as(other));
}

TEST_F(CheckpointTest, NewestCompleteIgnoresUnfinishedOnes) {
  EXPECT_EQ(newest_complete(dir_)->has_value(), false);
  TrainedModel run(1);
  const std::string good = save(run, 9);
  const std::string torn = save(run, 10);
  fs::remove(fs::path(torn) / "COMPLETE");
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-11.partial");
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-x");
  EXPECT_EQ(newest_complete(dir_)->value(), good);
}

TEST_F(CheckpointTest, NewestIsByNumberNotByName) {
  TrainedModel run(1);
  save(run, 9);
  const std::string newest = save(run, 100);
  EXPECT_EQ(newest_complete(dir_)->value(), newest);
}

TEST_F(CheckpointTest, RetentionKeepsTheNewestAndNeverTheLastOneLess) {
  TrainedModel run(1);
  for (const int64_t step : {1, 2, 3}) {
    save(run, step, /*keep=*/0);
  }
  EXPECT_FALSE(fs::exists(fs::path(dir_) / "checkpoints" / "step-2"));
  EXPECT_TRUE(fs::exists(fs::path(dir_) / "checkpoints" / "step-3" / "COMPLETE"));
}

TEST_F(CheckpointTest, AnotherModelOrDataSetIsRefusedWithBothValues) {
  TrainedModel run(1);
  const std::string folder = save(run, 1);
  for (const RunIdentity& other : {RunIdentity{"another", "a data set"}, RunIdentity{"a model", "another"}}) {
    const auto state = load(folder, other, run.model, run.optimizer);
    EXPECT_EQ(state.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(state.status().message()),
        testing::AllOf(HasSubstr("another"), HasSubstr(other.model == "another" ? "a model" : "a data set")));
  }
}

TEST_F(CheckpointTest, BrokenFilesAreErrorsThatNameThem) {
  TrainedModel run(1), untouched(1);
  const std::string folder = save(run, 1);
  const auto index_with = [&](const std::string& text) {
    std::ofstream(folder + "/index.json", std::ios::trunc) << text;
    const auto state = load(folder, identity_, run.model, run.optimizer);
    EXPECT_FALSE(state.ok()) << text;
    EXPECT_THAT(std::string(state.status().message()), HasSubstr("index.json")) << text;
  };
  for (const char* text :
       {"", "{", "[]", "{}", R"({"format": 3})", R"({"format": "distill-checkpoint"})",
        R"({"format": "distill-checkpoint", "version": "1"})"}) {
    index_with(text);
  }
  save(run, 2);
  const std::string shard = dir_ + "/checkpoints/step-2/rank-00000.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  const auto state = load(dir_ + "/checkpoints/step-2", identity_, run.model, run.optimizer);
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("rank-00000.safetensors"));
  EXPECT_TRUE(run.same_as(untouched));
}

TEST_F(CheckpointTest, FailedSaveLeavesNothingBehind) {
  TrainedModel run(1);
  std::ofstream(dir_ + "/checkpoints") << "a file where the folder should be";
  const auto folder = checkpoint::save(dir_, state_, identity_, run.model, run.optimizer, 2, {});
  EXPECT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("checkpoints"));
}

} // namespace
} // namespace distill::checkpoint
