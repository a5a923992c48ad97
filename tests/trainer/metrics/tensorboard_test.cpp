#include "trainer/metrics/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace distill::metrics {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::ElementsAre;

constexpr size_t kFirstEvents = 2; // the version and the start

class TensorboardTest : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) / "tensorboard_test";
  std::string metrics_ = testing::TempDir() + "tensorboard_test.jsonl";

  void SetUp() override {
    fs::remove_all(folder_);
    fs::remove_all(metrics_);
  }
  Tensorboard open(const KeptSteps& kept) {
    auto opened = Tensorboard::open(folder_.string(), metrics_, kept);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  // Files by name.
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<std::string> events() const {
    std::vector<std::string> found;
    for (const fs::path& file : files()) {
      EXPECT_TRUE(for_each_event(file.string(), [&](std::string_view event) { found.emplace_back(event); }).ok());
    }
    return found;
  }
  // The steps of all texts.
  std::vector<int64_t> text_steps() const {
    std::vector<int64_t> steps;
    for (const std::string& event : events()) {
      if (const auto step = step_of_text(event)) {
        steps.push_back(*step);
      }
    }
    return steps;
  }
};

TEST(ScalarsOf, EveryNumberHasATag) {
  const auto found = scalars_of(Json::parse(
      R"({"step":7,"loss":0.5,"hard":null,"skipped":true,"tokens":96,"phase_seconds":{"teacher":0.25,"head":1},
          "note":"text","time_ms":1700000000000})"));
  std::vector<std::pair<std::string, float>> pairs;
  for (const Scalar& scalar : found) {
    pairs.emplace_back(scalar.tag, scalar.value);
  }
  EXPECT_THAT(
      pairs,
      ElementsAre(
          std::pair("train/loss", 0.5F), std::pair("train/skipped", 1.0F), std::pair("train/tokens", 96.0F),
          std::pair("train/phase_seconds/teacher", 0.25F), std::pair("train/phase_seconds/head", 1.0F)));
  const auto eval = scalars_of(Json::parse(R"({"step":7,"eval":{"loss":2,"hard":null},"time_ms":1})"));
  ASSERT_EQ(eval.size(), 1U);
  EXPECT_EQ(eval[0].tag, "eval/loss");
  EXPECT_TRUE(scalars_of(Json::parse(R"({"step":7,"eval":3})")).empty());
}

TEST(ScalarsOf, ABoundOrAnEstimateSaysSoInItsTag) {
  const auto step =
      scalars_of(Json::parse(R"({"step":7,"loss":0.5,"hard":1,"soft":2,"lower_bounds":["loss","soft"]})"));
  ASSERT_EQ(step.size(), 3U);
  EXPECT_EQ(step[0].tag, "train/loss_lower_bound");
  EXPECT_EQ(step[1].tag, "train/hard");
  EXPECT_EQ(step[2].tag, "train/soft_lower_bound");
  const auto eval = scalars_of(Json::parse(R"({"step":7,"eval":{"hard":1,"soft":2,"estimates":["soft"]}})"));
  ASSERT_EQ(eval.size(), 2U);
  EXPECT_EQ(eval[0].tag, "eval/hard");
  EXPECT_EQ(eval[1].tag, "eval/soft_estimate");
}

TEST_F(TensorboardTest, AppendedRecordsAreThereAtOnce) {
  Tensorboard board = open({0, -1});
  const Json record = Json::parse(R"({"step":1,"loss":0.5,"time_ms":1500})");
  ASSERT_TRUE(board.append(record).ok());
  ASSERT_TRUE(board.text("eval/samples", 1, "# hi").ok());
  const auto found = events();
  ASSERT_EQ(found.size(), kFirstEvents + 2);
  EXPECT_EQ(found[kFirstEvents], scalars_event(1.5, 1, {{"train/loss", 0.5F}}));
  EXPECT_EQ(step_of_text(found[kFirstEvents + 1]), 1);
}

TEST_F(TensorboardTest, OpeningAgainHasTheLinesOfTheMetricsOnceAndTheKeptTexts) {
  {
    Tensorboard board = open({0, -1});
    for (int64_t step = 1; step <= 6; ++step) {
      ASSERT_TRUE(board.append(Json{{"step", step}, {"loss", 1}, {"time_ms", 1500}}).ok());
      if (step % 2 == 0) {
        ASSERT_TRUE(board.text("eval/samples", step, "text").ok());
      }
    }
  }
  std::ofstream(files().back(), std::ios::app | std::ios::binary) << event_record("torn").substr(0, 9);
  std::ofstream(metrics_) << R"({"step":1,"loss":1,"time_ms":1500}
{"step":2,"loss":1,"time_ms":1500}
{"step":2,"eval":{"loss":3},"time_ms":2500}
{"step":3,"torn)";
  for (int round = 0; round < 3; ++round) {
    Tensorboard board = open({2, 2});
    const auto found = events();
    ASSERT_EQ(found.size(), kFirstEvents + 4) << round;
    EXPECT_EQ(found[kFirstEvents + 1], scalars_event(1.5, 2, {{"train/loss", 1}}));
    EXPECT_EQ(found[kFirstEvents + 2], scalars_event(2.5, 2, {{"eval/loss", 3}}));
    EXPECT_THAT(text_steps(), ElementsAre(2));
    // One empty file, which a viewer may still be reading, and the new one after it.
    ASSERT_EQ(files().size(), 2U);
    EXPECT_EQ(fs::file_size(files().front()), 0U);
  }
}

TEST_F(TensorboardTest, AFileThatWasNotEmptiedDoublesNothing) {
  open({0, -1}).text("eval/samples", 4, "text").IgnoreError();
  fs::copy_file(files().front(), folder_ / "events.out.tfevents.0000000001.another-host.1");
  std::ofstream(folder_ / "unfinished") << "of a job that was killed";
  const Tensorboard board = open({4, 4});
  EXPECT_THAT(text_steps(), ElementsAre(4));
  EXPECT_EQ(events().size(), kFirstEvents + 1);
}

TEST_F(TensorboardTest, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_) << "a file";
  const auto opened = Tensorboard::open(folder_.string(), metrics_, {0, -1});
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()), testing::HasSubstr(folder_.string()));
}

} // namespace
} // namespace distill::metrics
