#include "data/prompt_pool.h"

#include <gmock/gmock.h>

#include <set>

#include "data/base/status_macros.h"
#include "tests/data/tokenizer_folder.h"

namespace distill::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PromptPoolTest : public testing::FolderTest {
 protected:
  // Conversations: a prompt of each of these lengths and an answer of 4 tokens; all ids are different.
  std::string conversations(const std::string& name, const std::vector<int64_t>& prompts, uint32_t first_id = 1) {
    ShardWriter writer(testing::spec(4000, /*loss_mask=*/true));
    for (const int64_t length : prompts) {
      const auto document = testing::distinct_documents({length + 4}, first_id)[0];
      first_id += static_cast<uint32_t>(document.size());
      std::vector<uint8_t> mask(document.size(), 1);
      std::fill_n(mask.begin(), length, 0);
      EXPECT_TRUE(writer.add(document, mask).ok());
    }
    EXPECT_TRUE(writer.write(path(name)).ok());
    return path(name);
  }
  static std::unique_ptr<PromptPool> open(const PromptPoolOptions& options) {
    auto pool = PromptPool::open(options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }
};

TEST_F(PromptPoolTest, EveryEpochHasEachPromptOnceInAnotherOrder) {
  const auto pool = open({.sources = {{conversations("a.dtok", {3, 5, 7, 2, 4}), 1.0}}, .room = 100, .seed = 3});
  std::vector<std::vector<uint32_t>> first, second;
  for (int64_t i = 0; i < 5; ++i) {
    first.push_back(pool->prompt(i)->ids);
    second.push_back(pool->prompt(5 + i)->ids);
  }
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set(first.begin(), first.end()), std::set(second.begin(), second.end()));
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 5U);
  EXPECT_EQ(pool->prompt(7)->ids, second[2]); // again the same
  EXPECT_THAT(
      std::set(first.begin(), first.end()), ::testing::Contains(std::vector<uint32_t>{1, 2, 3})); // without the answer
}

TEST_F(PromptPoolTest, DataSetsAreMixedByTheirWeights) {
  const auto pool = open(
      {.sources = {{conversations("a.dtok", {3, 5, 7}), 3.0}, {conversations("b.dtok", {2, 4}, 1000), 1.0}},
       .room = 100});
  int64_t of_second = 0;
  for (int64_t i = 0; i < 400; ++i) {
    of_second += pool->prompt(i)->ids[0] >= 1000 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(of_second), 100, 2);
}

TEST_F(PromptPoolTest, TextsAreCutAndDocumentsWithoutAnswerArePromptsAsAWhole) {
  const std::string text =
      testing::write_shard(path("text.dtok"), testing::spec(4000), testing::distinct_documents({9}));
  EXPECT_THAT(open({.sources = {{text, 1.0}}, .room = 100})->prompt(0)->ids, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(open({.sources = {{text, 1.0}}, .room = 3})->prompt(0)->ids, ElementsAre(1, 2, 3));
  ShardWriter writer(testing::spec(4000, /*loss_mask=*/true));
  ASSERT_TRUE(writer.add(std::vector<uint32_t>{5, 6, 7}, std::vector<uint8_t>{0, 0, 0}).ok());
  ASSERT_TRUE(writer.write(path("whole.dtok")).ok());
  EXPECT_THAT(open({.sources = {{path("whole.dtok"), 1.0}}, .room = 3})->prompt(0)->ids, ElementsAre(5, 6, 7));
}

TEST_F(PromptPoolTest, PromptsWithoutRoomArePassedOverAndCounted) {
  const std::string data = conversations("a.dtok", {3, 50, 7, 60});
  const auto pool = open({.sources = {{data, 1.0}}, .room = 7});
  EXPECT_EQ(pool->prompts(), 2);
  EXPECT_EQ(pool->without_room(), 2);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_LE(pool->prompt(i)->ids.size(), 7U);
  }
  const absl::Status none = PromptPool::open({.sources = {{data, 1.0}}, .room = 2}).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("expected documents with a prompt of at most 2 tokens"));
}

TEST_F(PromptPoolTest, ATextOfTheTeachersOwnHasAPromptOfItsOwn) {
  ShardWriter writer(testing::spec(4000, /*loss_mask=*/true));
  const std::vector<uint32_t> tokens{1, 2, 9}, teacher{7, 8, 6, 9};
  const std::vector<uint8_t> mask{0, 0, 1}, teacher_mask{0, 0, 0, 1};
  ASSERT_TRUE(writer.add(tokens, mask, {teacher, teacher_mask}).ok());
  ASSERT_TRUE(writer.write(path("a.dtok")).ok());
  const auto pool = open({.sources = {{path("a.dtok"), 1.0}}, .room = 2, .teacher_room = 3});
  EXPECT_THAT(pool->prompt(0)->ids, ElementsAre(1, 2));
  EXPECT_THAT(pool->prompt(0)->teacher_ids, ElementsAre(7, 8, 6));
  EXPECT_FALSE(PromptPool::open({.sources = {{path("a.dtok"), 1.0}}, .room = 2, .teacher_room = 2}).ok());
}

TEST_F(PromptPoolTest, TheFingerprintCoversFilesSeedAndRoom) {
  const std::string a = conversations("a.dtok", {3, 5}), b = conversations("b.dtok", {3, 6});
  const PromptPoolOptions options{.sources = {{a, 1.0}}, .room = 10, .seed = 1};
  const base::Digest own = open(options)->fingerprint();
  EXPECT_EQ(open(options)->fingerprint(), own);
  for (const auto& change : std::vector<std::function<void(PromptPoolOptions&)>>{
           [&](auto& o) { o.sources[0].path = b; }, [](auto& o) { o.seed = 2; }, [](auto& o) { o.room = 11; }}) {
    PromptPoolOptions other = options;
    change(other);
    EXPECT_NE(open(other)->fingerprint(), own);
  }
}

// The student's tokens: 0 <end>, 1 a, 2 b, 3 c, 4 ab, 5 <begin>. The teacher's: 0 a, 1 b, 2 c, 3 bc, 4 <end>.
class AlignedPromptsTest : public testing::TokenizerFolderTest {
 protected:
  void SetUp() override {
    TokenizerFolderTest::SetUp();
    const Tokenizer own = read(byte_level({"<end>", "a", "b", "c", "ab", "<begin>"}), "student.json");
    const Tokenizer its = read(byte_level({"a", "b", "c", "bc", "<end>"}), "teacher.json");
    auto made = TextAlignment::make(own, its, {}).value();
    alignment_ = std::make_shared<const TextAlignment>(std::move(made));
  }
  // A document in both tokenizers' tokens, of which the first ones are no completion.
  absl::StatusOr<PooledPrompt> prompt_of(
      const std::vector<uint32_t>& own, size_t before, const std::vector<uint32_t>& its, size_t its_before,
      int64_t room = 100, int64_t teacher_room = 100) {
    ShardSpec spec = testing::spec(6, /*loss_mask=*/true);
    spec.bos_id = 5;
    spec.teacher_vocab_size = 5;
    spec.teacher_tokenizer_hash = alignment_->teacher_hash();
    ShardWriter writer(spec);
    std::vector<uint8_t> mask(own.size(), 1), its_mask(its.size(), 1);
    std::fill_n(mask.begin(), before, 0);
    std::fill_n(its_mask.begin(), its_before, 0);
    RETURN_IF_ERROR(writer.add(own, mask, {its, its_mask}));
    RETURN_IF_ERROR(writer.write(path("both.dtok")));
    const PromptPoolOptions options{
        .sources = {{path("both.dtok"), 1.0}}, .room = room, .teacher_room = teacher_room, .alignments = {alignment_}};
    ASSIGN_OR_RETURN(const auto pool, PromptPool::open(options));
    return pool->prompt(0);
  }

  std::shared_ptr<const TextAlignment> alignment_;
};

TEST_F(AlignedPromptsTest, ATextIsCutAtTheSameByteOfItsFirstHalf) {
  // a | ab c | ab c <end>: the half of the student's seven tokens is within the second "ab c", which is a span.
  const std::vector<uint32_t> own = {1, 4, 3, 1, 4, 3, 0}, its = {0, 0, 3, 0, 0, 3, 4};
  const auto prompt = prompt_of(own, 0, its, 0).value();
  EXPECT_THAT(prompt.ids, ElementsAre(1, 4, 3));
  EXPECT_THAT(prompt.teacher_ids, ElementsAre(0, 0, 3));
  const auto less = prompt_of(own, 0, its, 0, /*room=*/2).value();
  EXPECT_THAT(less.ids, ElementsAre(1));
  EXPECT_THAT(less.teacher_ids, ElementsAre(0));
  const auto its_room = prompt_of(own, 0, its, 0, /*room=*/100, /*teacher_room=*/2).value();
  EXPECT_THAT(its_room.ids, ElementsAre(1));
}

TEST_F(AlignedPromptsTest, ABeginOfTextTokenIsNoPromptAndAConversationsIs) {
  const auto text = prompt_of({5, 1, 1, 1, 1, 1}, 1, {0, 0, 0, 0, 0}, 0).value();
  EXPECT_THAT(text.ids, ElementsAre(5, 1, 1));
  EXPECT_THAT(text.teacher_ids, ElementsAre(0, 0));
  const auto conversation = prompt_of({2, 1, 1, 1}, 1, {2, 1, 0, 0, 0}, 2).value();
  EXPECT_THAT(conversation.ids, ElementsAre(2));
  EXPECT_THAT(conversation.teacher_ids, ElementsAre(2, 1));
}

TEST_F(AlignedPromptsTest, EveryPromptHasATextInTheTeachersTokens) {
  EXPECT_THAT(prompt_of({2, 1}, 1, {}, 0).status().message(), HasSubstr("expected a text in the tokens of"));
  EXPECT_THAT(prompt_of({2, 1}, 1, {0}, 0).status().message(), HasSubstr("found none among 1"));
  ShardSpec spec = testing::spec(6, /*loss_mask=*/true);
  spec.teacher_vocab_size = 5;
  spec.teacher_tokenizer_hash[0] = 1;
  ShardWriter writer(spec);
  ASSERT_TRUE(writer.add({2, 1}, {0, 1}, {{1, 0}, {0, 1}}).ok());
  ASSERT_TRUE(writer.write(path("other.dtok")).ok());
  PromptPoolOptions options{.sources = {{path("other.dtok"), 1.0}}, .room = 100, .teacher_room = 100};
  EXPECT_THAT(PromptPool::open(options).status().message(), HasSubstr("expected a text in the student's tokens"));
  options.alignments = {alignment_};
  EXPECT_THAT(PromptPool::open(options).status().message(), HasSubstr("`teacher_tokenizer_hash`: expected"));
}

} // namespace
} // namespace distill::data
