#include "trainer/onpolicy/round_data.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/data/fixtures.h"

namespace distill::onpolicy {
namespace {

using ::testing::ElementsAre;

class RoundDataTest : public data::testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    data::testing::write_shard(
        path("prompts.dtok"), data::testing::spec(4000), data::testing::distinct_documents({6, 8, 4, 10, 6}));
    auto pool = data::PromptPool::open({.sources = {{path("prompts.dtok"), 1.0}}, .room = 8}).value();
    inputs_.prompts = std::move(pool);
    config_.data.seq_len = 16;
  }
  std::vector<Request> requests(int64_t round, int64_t first_prompt, int64_t completions) {
    auto made = round_requests(config_.onpolicy, *inputs_.prompts, round, first_prompt, completions);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  config::Config config_;
  RoundInputs inputs_;
};

TEST_F(RoundDataTest, EveryCompletionHasItsSeedAndEachPromptItsSamples) {
  config_.onpolicy.samples = 2;
  const std::vector<Request> round = requests(1, 0, 6), next = requests(2, 3, 6);
  std::set<uint64_t> seeds;
  for (const std::vector<Request>* all : {&round, &next}) {
    for (const Request& request : *all) {
      EXPECT_TRUE(seeds.insert(request.seed).second);
      EXPECT_LT(request.seed, uint64_t{1} << 53);
    }
  }
  EXPECT_EQ(round[0].prompt.ids, round[1].prompt.ids);
  EXPECT_NE(round[1].prompt.ids, round[2].prompt.ids);
  EXPECT_NE(next[0].prompt.ids, round[4].prompt.ids);
  EXPECT_EQ(requests(1, 0, 6)[3].seed, round[3].seed);
}

// The document after a truncated completion ends with its last token, and nothing but completions is in the loss.
TEST_F(RoundDataTest, TheShardHasTheCompletionsInTheLossAndNothingElse) {
  const std::vector<Request> round = requests(0, 0, 3);
  const std::map<int64_t, Completion> completions{{0, {{50, 0}, false, {}}}, {2, {{60, 61, 62}, true, {}}}};
  ASSERT_TRUE(write_round_shards(folder_.string(), round, completions, inputs_, inputs_.prompts->header()).ok());
  const auto shard = data::Shard::open(path("shard-00000.dtok")).value();
  ASSERT_EQ(shard.documents(), 2);
  int64_t document = 0;
  for (const auto& [id, completion] : completions) {
    std::vector<int64_t> tokens(static_cast<size_t>(shard.document_length(document)));
    const int64_t begin = shard.document_begin(document++);
    ASSERT_TRUE(shard.read_tokens(begin, absl::MakeSpan(tokens)).ok());
    std::vector<int64_t> expected(round[id].prompt.ids.begin(), round[id].prompt.ids.end());
    const auto prompt = static_cast<int64_t>(expected.size());
    expected.insert(expected.end(), completion.ids.begin(), completion.ids.end());
    EXPECT_EQ(tokens, expected);
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(shard.in_loss(begin + static_cast<int64_t>(i)), static_cast<int64_t>(i) >= prompt);
    }
  }
  EXPECT_EQ(shard.tokenizer_hash(), data::testing::spec(1).tokenizer_hash);
}

TEST_F(RoundDataTest, ARoundIsReadInItsSequencesEachCompletionOnce) {
  const std::vector<Request> round = requests(0, 0, 5);
  std::map<int64_t, Completion> completions;
  for (int64_t id = 0; id < 5; ++id) {
    completions[id] = {{static_cast<uint32_t>(100 + id), 0}, false, {}};
  }
  ASSERT_TRUE(write_round_shards(folder_.string(), round, completions, inputs_, inputs_.prompts->header()).ok());
  const auto data = open_round_data(config_, inputs_, folder_.string(), 0, /*sequences=*/4).value();
  EXPECT_EQ(data->num_samples(), 4);
  std::multiset<int64_t> answers;
  for (int64_t sample = 0; sample < 4; ++sample) {
    const at::Tensor targets = data::testing::get(*data, sample, 1).targets_BS.flatten();
    for (int64_t i = 0; i < targets.size(0); ++i) {
      if (const auto id = targets[i].item<int64_t>(); id >= 100) {
        answers.insert(id);
      }
    }
  }
  EXPECT_THAT(answers, ElementsAre(100, 101, 102, 103, 104));
}

} // namespace
} // namespace distill::onpolicy
