#include "data/token_limits.h"

#include <gmock/gmock.h>

#include "tests/data/fixtures.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenLimitsTest : public testing::FolderTest {
 protected:
  // Ids 1 to 9 in documents of 4 and 5 tokens, of a tokenizer with ids below 12.
  Shard shard() const {
    return *Shard::open(testing::write_shard(path("a.dtok"), testing::spec(12), testing::distinct_documents({4, 5})));
  }
  static std::string message(const Shard& shard, const TokenLimits& limits) {
    return std::string(check_token_limits(shard, limits).message());
  }
};

TEST_F(TokenLimitsTest, TokensThatNoDocumentUsesDoNotMatter) {
  TokenLimits limits;
  EXPECT_EQ(message(shard(), limits), "");
  limits.documents = {10, {0, 10, 11, 40}};
  EXPECT_EQ(message(shard(), limits), "");
}

TEST_F(TokenLimitsTest, ATokenWithoutARowIsNamed) {
  TokenLimits limits;
  limits.documents.rows = 8;
  limits.token_text = [](int64_t id) { return id == 8 ? "[PAD]\n" : ""; };
  EXPECT_THAT(
      message(shard(), limits),
      AllOf(
          HasSubstr(
              "a.dtok: document 1, token 3: id 8 (\"[PAD]\\n\"): expected an id below 8, the rows of the model's"),
          HasSubstr("the file has 2 tokens of the kind"), HasSubstr("resize_token_embeddings(9)")));
  limits.documents.rows = 9;
  EXPECT_THAT(message(shard(), limits), AllOf(HasSubstr("token 4: id 9: expected"), Not(HasSubstr("of the kind"))));
}

TEST_F(TokenLimitsTest, ATokenOfOneTokenizerAloneIsNamed) {
  TokenLimits limits;
  limits.documents = {12, {0, 4, 11}};
  EXPECT_THAT(
      message(shard(), limits),
      AllOf(HasSubstr("document 0, token 3: id 4: expected a token of both tokenizers"), HasSubstr("without it")));
}

TEST_F(TokenLimitsTest, TheTeachersTextsHaveLimitsOfTheirOwn) {
  ShardWriter writer(testing::spec(12, /*loss_mask=*/true));
  const std::vector<uint32_t> tokens{1, 2};
  const std::vector<uint32_t> teacher{9, 10, 2};
  const std::vector<uint8_t> in_loss{0, 1};
  const std::vector<uint8_t> in_completion{0, 0, 1};
  ASSERT_TRUE(writer.add(tokens, in_loss, {teacher, in_completion}).ok());
  ASSERT_TRUE(writer.write(path("b.dtok")).ok());
  const Shard shard = *Shard::open(path("b.dtok"));
  TokenLimits limits;
  limits.documents.rows = 3;
  limits.teacher_texts.rows = 11;
  EXPECT_EQ(message(shard, limits), "");
  limits.teacher_texts.rows = 10;
  EXPECT_THAT(message(shard, limits), HasSubstr("document 0, text of the teacher's own, token 1: id 10: expected"));
}

TEST_F(TokenLimitsTest, MaskedTokensEndTheTargetsOfTheirDocuments) {
  Shard own = shard(); // documents of ids 1 to 4 and 5 to 9
  TokenLimits limits;
  limits.documents.masked = {3, 40};
  EXPECT_EQ(message(own, limits), "");
  auto found = leave_out_masked(own, limits);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->documents, 1);
  EXPECT_EQ(found->targets, 2);
  for (int64_t token = 0; token < 9; ++token) {
    EXPECT_TRUE(own.in_loss(token));
    EXPECT_EQ(own.has_target(token), token < 2 || token > 3) << token;
  }
  limits.documents.masked = {1, 9}; // the first token of a document is never a target
  found = leave_out_masked(own, limits);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->documents, 2);
  EXPECT_EQ(found->targets, 4);
  for (int64_t token = 0; token < 9; ++token) {
    EXPECT_EQ(own.has_target(token), token > 3 && token < 8) << token;
  }
  limits.documents.masked = {10, 11};
  found = leave_out_masked(own, limits);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->documents, 0);
  EXPECT_TRUE(own.left_out().empty());
}

} // namespace
} // namespace distill::data
