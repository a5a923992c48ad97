#include "trainer/onpolicy/judgement.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/data/fixtures.h"
#include "trainer/onpolicy/round_folder.h"

namespace distill::onpolicy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A completion in which the teacher agrees with the first `agreeing` of `count` tokens.
JudgedCompletion completion(int64_t document, int64_t count, int64_t agreeing) {
  JudgedCompletion made{document};
  for (int64_t i = 0; i < count; ++i) {
    const bool agrees = i < agreeing;
    made.tokens.push_back({agrees ? 0.25 : 2.0, -0.5, 0.5, agrees ? 0.25 : 2.0, 1.5, agrees});
  }
  return made;
}

TEST(Judgement, TokensAreCountedByTheirPositionInTheCompletion) {
  const auto positions = by_position({completion(0, 8, 8), completion(1, 5, 2)}, /*most=*/64);
  ASSERT_EQ(positions.size(), 2U); // of 4 tokens each; no completion reaches the third
  EXPECT_EQ(positions[0].begin, 0);
  EXPECT_EQ(positions[0].end, 4);
  EXPECT_EQ(positions[0].tokens, 8);
  EXPECT_DOUBLE_EQ(positions[0].agreement, 6.0 / 8);
  EXPECT_DOUBLE_EQ(positions[0].reverse_kl, (6 * 0.25 + 2 * 2.0) / 8);
  EXPECT_EQ(positions[1].tokens, 5);
  EXPECT_DOUBLE_EQ(positions[1].agreement, 4.0 / 5);
  EXPECT_DOUBLE_EQ(positions[1].entropy, 1.5);
  const auto [early, late] = early_and_late(positions, 64);
  EXPECT_EQ(early.tokens, 13);
  EXPECT_DOUBLE_EQ(early.agreement, 10.0 / 13);
  EXPECT_EQ(late.tokens, 0);
  EXPECT_TRUE(std::isnan(late.agreement));
}

TEST(Judgement, WhatIsNotComparedCountsInTheLossAlone) {
  JudgedCompletion judged = completion(0, 4, 2);
  judged.tokens[1].compared = judged.tokens[3].compared = false;
  const auto positions = by_position({judged}, /*most=*/64);
  ASSERT_EQ(positions.size(), 1U);
  EXPECT_EQ(positions[0].tokens, 4);
  EXPECT_EQ(positions[0].compared, 2);
  EXPECT_DOUBLE_EQ(positions[0].loss, (2 * 0.25 + 2 * 2.0) / 4);
  EXPECT_DOUBLE_EQ(positions[0].reverse_kl, (0.25 + 2.0) / 2);
  EXPECT_DOUBLE_EQ(positions[0].agreement, 0.5);
  const EarlyAndLate sums = early_and_late(positions, 64);
  EXPECT_DOUBLE_EQ(sums.early.loss, positions[0].loss);
  EXPECT_DOUBLE_EQ(sums.early.reverse_kl, positions[0].reverse_kl);
}

TEST(Judgement, FewPositionsAreStretchesOfTheirOwn) {
  const auto positions = by_position({completion(0, 3, 1)}, /*most=*/3);
  ASSERT_EQ(positions.size(), 3U);
  EXPECT_EQ(positions[2].end, 3);
  EXPECT_DOUBLE_EQ(positions[0].agreement, 1);
  EXPECT_DOUBLE_EQ(positions[1].agreement, 0);
}

TEST(Judgement, ATeacherThatDoesNotFollowIsNamedWithThePosition) {
  std::vector<JudgedCompletion> falls, agrees, few;
  for (int64_t i = 0; i < 4; ++i) {
    falls.push_back(completion(i, 256, 96));
    agrees.push_back(completion(i, 256, 256));
  }
  few.push_back(completion(0, 32, 8));
  EXPECT_THAT(
      position_warning(by_position(falls, 256), 256),
      AllOf(
          HasSubstr("from token 96 of a completion on the teacher agrees with 0% of the tokens (KL 2.000), before it "
                    "with 100% (KL 0.250)"),
          HasSubstr("beyond where the teacher follows"), HasSubstr("lower onpolicy.max_new_tokens to about 96")));
  EXPECT_EQ(position_warning(by_position(agrees, 256), 256), "");
  EXPECT_EQ(position_warning(by_position(few, 32), 32), "");
}

class JudgedFileTest : public data::testing::FolderTest {
 protected:
  // Documents of 2 tokens of prompt and 3 or 2 of completion.
  data::Shard shard() {
    data::ShardWriter writer(data::testing::spec(100, /*loss_mask=*/true));
    EXPECT_TRUE(writer.add({1, 2, 10, 11, 12}, {0, 0, 1, 1, 1}).ok());
    EXPECT_TRUE(writer.add({3, 4, 20, 21}, {0, 0, 1, 1}).ok());
    EXPECT_TRUE(writer.write(path("round.dtok")).ok());
    auto shard = data::Shard::open(path("round.dtok"));
    EXPECT_TRUE(shard.ok()) << shard.status();
    return *std::move(shard);
  }
};

TEST_F(JudgedFileTest, HasTheTokensOfTheShardWithTheirNumbers) {
  const data::Shard own = shard();
  const auto json =
      judged_json({completion(1, 2, 1), completion(0, 3, 3)}, /*most=*/8, RoundShards({&own}), /*text=*/nullptr)
          .value();
  EXPECT_EQ(json["tokens"], 5);
  const Json& first = json["completions"][0];
  EXPECT_EQ(first["document"], 1);
  EXPECT_EQ(first["prompt_ids"], Json({3, 4}));
  EXPECT_EQ(first["ids"], Json({20, 21}));
  EXPECT_EQ(first["agrees"], Json({1.0, 0.0}));
  EXPECT_EQ(first["reverse_kl"], Json({0.25, 2.0}));
  EXPECT_TRUE(first["texts"].is_null());
  EXPECT_TRUE(check_judged(json, RoundShards({&own}), "judged.json").ok());
  EXPECT_THAT(
      std::string(judged_json({completion(1, 3, 1)}, 8, RoundShards({&own}), nullptr).status().message()),
      HasSubstr("document 1: expected 2 judged tokens, those of its completion, found 3"));
}

TEST_F(JudgedFileTest, WhatIsDamagedIsNamed) {
  const data::Shard own = shard();
  const Json good = *judged_json({completion(1, 2, 1), completion(0, 3, 3)}, 8, RoundShards({&own}), nullptr);
  const auto says = [&](const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    return std::string(check_judged(json, RoundShards({&own}), "judged.json").message());
  };
  EXPECT_THAT(says([](Json& json) { json = Json::array(); }), HasSubstr("judged.json: expected what"));
  EXPECT_THAT(says([](Json& json) { json["tokens"] = 6; }), HasSubstr("expected 6 tokens by position, found 5"));
  EXPECT_THAT(says([](Json& json) { json["completions"][0]["document"] = 2; }), HasSubstr("document 2 of 2"));
  EXPECT_THAT(says([](Json& json) { json["completions"][0]["ids"][1] = 22; }), HasSubstr("other ids than"));
  EXPECT_THAT(says([](Json& json) { json["completions"][1]["loss"].erase(0); }), HasSubstr("3 tokens as \"loss\""));
  EXPECT_THAT(says([](Json& json) { json["completions"][1]["ids"] = "x"; }), HasSubstr("judged.json: "));
}

TEST_F(JudgedFileTest, IsPartOfTheRoundWithItsChecksum) {
  const RoundFolder folder(folder_.string(), 0);
  std::string aside;
  ASSERT_TRUE(folder.begin({{"steps", 1}}, aside).ok());
  ASSERT_TRUE(folder.complete({{"steps", 1}}, {{"completions", 2}, {"seconds", {{"engine", 3}}}}).ok());
  EXPECT_TRUE(absl::IsNotFound(folder.read_judged().status()));
  ASSERT_TRUE(
      folder.add_judgement({{"tokens", 5}}, {{"judged", {{"agreement", 0.5}}}, {"seconds", {{"check", 0.25}}}}).ok());
  const Json result = folder.read_complete()->result;
  EXPECT_EQ(result["completions"], 2);
  EXPECT_EQ(result["judged"]["agreement"], 0.5);
  EXPECT_EQ(result["seconds"], Json({{"engine", 3}, {"check", 0.25}}));
  EXPECT_EQ((*folder.read_judged())["tokens"], 5);
  write("onpolicy/round-00000/judged.json", std::string(R"({"tokens": 6})"));
  EXPECT_THAT(std::string(folder.read_judged().status().message()), HasSubstr("judged.json: expected the checksum"));
}

} // namespace
} // namespace distill::onpolicy
