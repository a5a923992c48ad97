#include "trainer/checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/trainer/checkpoint/tiny_run.h"

namespace distill::checkpoint {
namespace {

using testing::HasSubstr;

// Two ranks, units of 100 and 70 elements.
Index sample_index() {
  Index index;
  const DataIdentity data{"d", {{"data/a", 3, 500}, {"data/b", 0, 0}}};
  index.state = {
      12, 96, 3072, 1,
      0,  2,  10,   {{0, 0, 32, data::PackingMode::kPack}, {7, 56, 64, data::PackingMode::kConcat, 0, data}}};
  index.info = {{"m", "o", "t"}, "run:\n  dir: x\n", "distill 1", "/models/s", {{"teacher.path", "ab"}}};
  index.shard = 2;
  index.replicate = 3;
  index.units = {
      {"embedding", 100, {{"weight", 0, {10, 10}}}}, {"head", 70, {{"norm", 0, {6}}, {"lm_head", 64, {6, 1}}}}};
  index.files = {
      {"rank-00000.safetensors", kBlockBytes + 1, {{0, 64}, {0, 64}}, {1, 2}},
      {"rank-00001.safetensors", kBlockBytes, {{64, 64}, {64, 64}}, {0xffffffffffffffff}}};
  return index;
}

TEST(IndexTest, RoundTrip) {
  const Index index = sample_index();
  const auto read = parse_index(to_json(index), "index.json").value();
  EXPECT_EQ(read.state, index.state);
  EXPECT_EQ(read.info.identity, index.info.identity);
  EXPECT_EQ(read.info.config, index.info.config);
  EXPECT_EQ(read.info.student_folder, index.info.student_folder);
  EXPECT_EQ(read.info.model_files, index.info.model_files);
  EXPECT_EQ(read.units, index.units);
  EXPECT_EQ(read.replicate, 3);
  ASSERT_EQ(read.files.size(), 2);
  EXPECT_EQ(read.files[1].ranges, index.files[1].ranges);
  EXPECT_EQ(read.files[1].block_sums, index.files[1].block_sums);
}

TEST(IndexTest, ARoundOfOnPolicyDataIsPartOfTheState) {
  Index index = sample_index();
  index.state.train_samples = 60;
  index.state.round = {2, 8, 6, 4, 48, 24, "sha256 ab", 5};
  const auto read = parse_index(to_json(index), "index.json").value();
  EXPECT_EQ(read.state, index.state);
  nlohmann::json json = nlohmann::json::parse(to_json(index));
  json["round"]["steps"] = -1;
  EXPECT_THAT(std::string(parse_index(json.dump(), "index.json").status().message()), HasSubstr("round.steps"));
  json.erase("round");
  json.erase("train_samples"); // as programs without on-policy data write it
  const auto older = parse_index(json.dump(), "index.json").value();
  EXPECT_EQ(older.state.train_samples, 96);
  EXPECT_FALSE(older.state.round.begun());
}

TEST(IndexTest, OlderOnesDoNotSayHowLargeTheDataWere) {
  nlohmann::json json = nlohmann::json::parse(to_json(sample_index()));
  json.erase("data_sets");
  const auto read = parse_index(json.dump(), "index.json").value();
  EXPECT_EQ(read.state.data_stages.back().data, DataIdentity{"d"});
  json["data_sets"] = {{{"path", "a"}, {"documents", -1}, {"tokens", 5}}};
  EXPECT_THAT(
      std::string(parse_index(json.dump(), "index.json").status().message()), HasSubstr("data_sets[0].documents"));
}

// The stages of one data set name it once, where programs look for it that know no others.
TEST(IndexTest, AStageOfOtherDataKeepsItsIdentity) {
  Index index = sample_index();
  const auto one = nlohmann::json::parse(to_json(index));
  EXPECT_EQ(one["data"], "d");
  for (const auto& stage : one["data_stages"]) {
    EXPECT_FALSE(stage.contains("data") || stage.contains("data_sets")) << stage;
  }
  index.state.data_stages[0].data = {"others", {{"data/c", 7, 70}}};
  const auto read = parse_index(to_json(index), "index.json").value();
  EXPECT_EQ(read.state, index.state);
  EXPECT_EQ(nlohmann::json::parse(to_json(index))["data"], "d");
}

TEST(IndexTest, WhatDoesNotFitIsNamed) {
  struct Case {
    const char* says;
    std::function<void(Index&)> change;
  };
  const Case cases[] = {
      {"files[0].name", [](Index& i) { i.files[0].name = "../../etc/passwd"; }},
      {"files[0].name", [](Index& i) { i.files[0].name = "/etc/passwd"; }},
      {"files[0].name", [](Index& i) { i.files[0].name = ".."; }},
      {"files[0].name", [](Index& i) { i.files[0].name = std::string("a\0b", 3); }},
      {"files[0].name", [](Index& i) { i.files[0].name = ""; }},
      {"files[0].bytes", [](Index& i) { i.files[0].bytes = -1; }},
      {"files[0].bytes", [](Index& i) { i.files[0].bytes = INT64_MAX; }},
      {"expected 2 checksums", [](Index& i) { i.files[0].block_sums.pop_back(); }},
      {"units[0].numel", [](Index& i) { i.units[0].numel = INT64_MAX; }},
      {"expected to begin at element 64, found 65", [](Index& i) { i.files[1].ranges[0].begin = 65; }},
      {"unit head: 70 elements, but the files hold 69", [](Index& i) { i.files[1].ranges[1].numel = 5; }},
      {"expected one for each of 2 units, found 1", [](Index& i) { i.files[1].ranges.pop_back(); }},
      {"expected one for each of 2 ranks, found 1", [](Index& i) { i.files.pop_back(); }},
      {"ranges", [](Index& i) { i.files[0].ranges[0].numel = -64; }},
      {"layout.shard", [](Index& i) { i.shard = 0; }},
      {"data_stages: expected at least one", [](Index& i) { i.state.data_stages.clear(); }},
      {"data_stages[0].first_sample", [](Index& i) { i.state.data_stages[0].first_sample = 1; }},
      {"data_stages[1].first_sample", [](Index& i) { i.state.data_stages[1].first_sample = 97; }},
      {"data_stages[1].first_sample", [](Index& i) { i.state.data_stages[1].first_sample = 0; }},
      {"data_stages[1].step", [](Index& i) { i.state.data_stages[1].step = 13; }},
      {"data_stages[0].seq_len", [](Index& i) { i.state.data_stages[0].seq_len = (1 << 26) + 1; }},
      {"data_stages[1].teacher_seq_len", [](Index& i) { i.state.data_stages[1].teacher_seq_len = 1; }},
      {"step", [](Index& i) { i.state.step = -1; }}};
  for (const Case& one : cases) {
    Index index = sample_index();
    one.change(index);
    const auto read = parse_index(to_json(index), "index.json");
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << one.says;
    EXPECT_THAT(std::string(read.status().message()), testing::AllOf(HasSubstr("index.json"), HasSubstr(one.says)));
  }
}

TEST(IndexTest, AnUnknownPackingIsNamed) {
  std::string text = to_json(sample_index());
  text.replace(text.find("\"concat\""), 8, "\"best\"");
  const auto read = parse_index(text, "index.json");
  EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(read.status().message()),
      HasSubstr("data_stages[1].packing: expected pack or concat, found \"best\""));
}

TEST(IndexTest, AnotherVersionIsNotDamage) {
  for (const int version : {1, 4}) {
    std::string text = to_json(sample_index());
    text.replace(text.find("\"version\": 3"), 12, absl::StrCat("\"version\": ", version));
    const auto read = parse_index(text, "index.json");
    EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        std::string(read.status().message()),
        HasSubstr(absl::StrCat("version ", version, "; this program reads versions 2 to 3")));
  }
}

TEST(IndexTest, TheVersionBeforeIsRead) {
  Index index = sample_index();
  index.version = 2;
  index.info.config = "data: {seq_len: 48, packing: concat}\n";
  const auto read = parse_index(to_json(index), "index.json").value();
  EXPECT_EQ(read.version, 2);
  index.state.data_stages = {{0, 0, 48, data::PackingMode::kConcat, 0, index.state.data_stages.back().data}};
  EXPECT_EQ(read.state, index.state);
}

TEST(IndexTest, AnIndexWithoutTheNumberOfEmptyStepsIsRead) {
  std::string text = to_json(sample_index());
  const std::string line = " \"empty_steps\": 2,\n";
  ASSERT_NE(text.find(line), std::string::npos);
  text.replace(text.find(line), line.size(), "");
  const auto read = parse_index(text, "index.json").value();
  EXPECT_EQ(read.state.empty_steps, 0);
}

TEST(IndexTest, EveryTruncationIsAnErrorThatNamesTheFile) {
  const std::string text = to_json(sample_index());
  for (size_t length = 0; length + 1 < text.size(); ++length) { // the last byte is a newline
    const auto read = parse_index(std::string_view(text).substr(0, length), "index.json");
    ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << length;
    ASSERT_THAT(std::string(read.status().message()), HasSubstr("index.json"));
  }
}

} // namespace
} // namespace distill::checkpoint
