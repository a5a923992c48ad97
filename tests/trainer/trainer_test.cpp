#include "trainer/trainer.h"

#include <gmock/gmock.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/fixtures.h"
#include "trainer/checkpoint/folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Whole runs of a tiny random student and teacher, in this process.
class TrainerTest : public data::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    fs::create_directories(path("model"));
    write("model/config.json", R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "initializer_range": 0.2})");
    const std::string shard = write_data("a.dtok", 7);
    config_.student = {.path = path("model"), .init = config::ModelInit::kRandom};
    config_.teacher = {.path = path("model"), .init = config::ModelInit::kRandom};
    config_.data.train = config_.data.eval = {{shard, 1.0}};
    config_.data.seq_len = 16;
    config_.train.steps = 4;
    config_.train.micro_batch_size = 2;
    config_.train.global_batch_size = 4;
    config_.train.device = config::DeviceChoice::kCpu;
    config_.optimizer.lr = 1e-2;
    config_.eval.every = 2;
    config_.checkpoint.every = 2;
    config_.run.dir = path("run");
    config_.run.progress = config::ProgressStyle::kNone;
  }

  std::string write_data(const std::string& name, uint32_t stride) const {
    std::vector<std::vector<uint32_t>> documents;
    for (uint32_t d = 0; d < 30; ++d) {
      auto& document = documents.emplace_back();
      for (uint32_t i = 0; i < 20; ++i) {
        document.push_back((d * stride + i * 3) % 64);
      }
    }
    return data::testing::write_shard(path(name), data::testing::spec(64), documents);
  }
  absl::StatusOr<RunResult> run(const StartOptions& start = {}) {
    return train(config_, launch::RankInfo{}, start, stop_);
  }
  std::vector<nlohmann::json> records() const {
    std::vector<nlohmann::json> found;
    std::ifstream file(path("run/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      found.push_back(nlohmann::json::parse(line));
    }
    return found;
  }

  config::Config config_;
  launch::StopSignal stop_;
};

TEST_F(TrainerTest, ARunLeavesEveryStepEvaluationCheckpointAndTheModel) {
  const auto result = run().value();
  EXPECT_EQ(result.steps, 4);
  EXPECT_FALSE(result.stopped_by_signal);
  std::vector<int64_t> steps, evaluations;
  for (const auto& record : records()) {
    (record.contains("eval") ? evaluations : steps).push_back(record["step"]);
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(evaluations, testing::ElementsAre(2, 4));
  for (const char* file : {"config.yaml", "checkpoints/step-2", "checkpoints/step-4", "model/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(fs::path(path("run")) / file)) << file;
  }
}

TEST_F(TrainerTest, TwoHalvesAreTheWhole) {
  ASSERT_TRUE(run().ok());
  const auto whole = records();
  config_.run.dir = path("half");
  config_.scheduler.type = config::Config{}.scheduler.type;
  ASSERT_TRUE(run({.last_step = 2}).ok());
  const auto result = run({.mode = StartMode::kResume}).value();
  EXPECT_EQ(result.steps, 4);
  fs::rename(path("run"), path("whole"));
  fs::rename(path("half"), path("run"));
  const auto halves = records();
  ASSERT_EQ(halves.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const bool evaluation = whole[i].contains("eval");
    const auto& a = evaluation ? whole[i]["eval"] : whole[i];
    const auto& b = evaluation ? halves[i]["eval"] : halves[i];
    EXPECT_EQ(a["loss"], b["loss"]) << i;
  }
}

// The second data set is written after the first stage has ended.
TEST_F(TrainerTest, ALaterStageBringsDataThatDidNotExistWhenTheRunBegan) {
  ASSERT_TRUE(run().ok());
  const auto first_stage = config_.data.train;
  config_.data.train = {{write_data("b.dtok", 5), 1.0}};
  config_.train.steps = 8;
  const auto refused = run({.mode = StartMode::kResume});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("data.train is not what it was when the run began:"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("b.dtok: 30 documents, 600 tokens now"));

  // The second stage at once, and in two halves of which the latter resumes within it.
  fs::copy(path("run"), path("whole"), fs::copy_options::recursive);
  for (const int64_t last_step : {6, 0}) {
    const StartOptions start{.mode = StartMode::kResume, .other_data_allowed = last_step > 0, .last_step = last_step};
    const auto half = run(start).value();
  }
  const auto halves = records();
  const auto weights = checkpoint::read_index(path("run/checkpoints/step-8"))->files[0].block_sums;
  fs::rename(path("run"), path("halves"));
  fs::rename(path("whole"), path("run"));
  ASSERT_TRUE(run({.mode = StartMode::kResume, .other_data_allowed = true}).ok());
  const auto whole = records();
  ASSERT_EQ(halves.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].value("loss", 0.0), halves[i].value("loss", 0.0)) << i;
  }
  const auto index = checkpoint::read_index(path("run/checkpoints/step-8")).value();
  EXPECT_EQ(index.files[0].block_sums, weights);
  const std::vector<checkpoint::DataStage>& stages = index.state.data_stages;
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_EQ(stages[1].step, 4);
  EXPECT_EQ(stages[1].first_sample, 16);
  EXPECT_EQ(stages[0].data.sets[0].path, path("a.dtok"));
  EXPECT_EQ(stages[1].data.sets[0].path, path("b.dtok"));

  // The run is now one of the second data, and no longer one of the first.
  config_.data.train = first_stage;
  EXPECT_FALSE(run({.mode = StartMode::kResume}).ok());
}

TEST_F(TrainerTest, EvaluatingTheTrainingBatchGivesTheTrainingLoss) {
  config_.data.shuffle = false;
  config_.data.packing = data::PackingMode::kConcat;
  config_.eval.batches = 2; // the first step's batch
  config_.eval.every = 0;
  config_.eval.at_start = true;
  config_.train.steps = 1;
  ASSERT_TRUE(run().ok());
  const auto found = records();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_NEAR(found[0]["eval"]["loss"].get<double>(), found[1]["loss"].get<double>(), 1e-6);
}

TEST_F(TrainerTest, ASignalSavesTheStateAndEndsTheRun) {
  std::raise(SIGTERM);
  const auto result = run().value();
  EXPECT_TRUE(result.stopped_by_signal);
  EXPECT_EQ(result.steps, 0);
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step-0")));
  EXPECT_FALSE(fs::exists(path("run/model")));
}

TEST_F(TrainerTest, AFolderInUseIsRefusedBeforeAnythingIsTouched) {
  fs::create_directories(path("run"));
  write("run/metrics.jsonl", "content");
  const auto result = run();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("--resume"));
  EXPECT_FALSE(fs::exists(path("run/config.yaml")));
}

TEST_F(TrainerTest, AllThatIsWrongWithTheInputsIsSaidTogether) {
  config_.teacher.path = path("nowhere");
  config_.data.eval = {{path("gone.dtok"), 1.0}};
  const auto result = run();
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("nowhere"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("gone.dtok"));
  EXPECT_FALSE(fs::exists(path("run")));
}

} // namespace
} // namespace distill::trainer
