#include "data/vocabulary_map.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/data/tokenizer_folder.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

class VocabularyMapTest : public testing::TokenizerFolderTest {
 protected:
  absl::StatusOr<VocabularyMap> map(const Json& teacher, const Json& student) {
    return map_vocabularies(read(teacher), read(student, "student.json"));
  }
  std::string difference(const Json& student) {
    return std::string(map(bpe(), student).status().message());
  }
  static std::vector<std::pair<int64_t, int64_t>> pairs(const VocabularyMap& map) {
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const auto& [student, teacher] : map.shared) {
      pairs.emplace_back(student, teacher);
    }
    return pairs;
  }
};

TEST_F(VocabularyMapTest, EqualTokenizersShareAllIds) {
  Json same = bpe();
  same["model"]["merges"] = Json::array({"a b", "ab c"}); // the older spelling
  same["pre_tokenizer"] = Json{{"type", "ByteLevel"}};
  same["added_tokens"].push_back({{"id", 2}, {"content", "c"}}); // also in the vocabulary
  const auto found = map(bpe(), same).value();
  EXPECT_THAT(
      pairs(found),
      ElementsAre(
          std::pair(0, 0), std::pair(1, 1), std::pair(2, 2), std::pair(3, 3), std::pair(4, 4), std::pair(5, 5)));
  EXPECT_EQ(found.moved, 0);
  EXPECT_THAT(found.teacher_only, IsEmpty());
  EXPECT_THAT(found.student_only, IsEmpty());
}

TEST_F(VocabularyMapTest, TokensAreKnownByTheirTextsWhateverTheirIds) {
  Json teacher = bpe();
  teacher["model"]["vocab"] = {{"a", 9}, {"b", 0}, {"c", 2}, {"ab", 1}, {"abc", 4}};
  teacher["added_tokens"] = Json::parse(R"([{"id": 5, "content": "<|end|>"}, {"id": 6, "content": "<|tool|>"}])");
  Json student = bpe();
  student["added_tokens"].push_back({{"id", 6}, {"content", "<|think|>"}});
  const auto found = map(teacher, student).value();
  EXPECT_THAT(
      pairs(found),
      ElementsAre(
          std::pair(0, 9), std::pair(1, 0), std::pair(2, 2), std::pair(3, 1), std::pair(4, 4), std::pair(5, 5)));
  EXPECT_EQ(found.moved, 3);
  EXPECT_THAT(found.teacher_only, ElementsAre(6)); // added tokens have the next free ids, as transformers gives them
  EXPECT_THAT(found.student_only, ElementsAre(6));
}

TEST_F(VocabularyMapTest, AnIdWithAnotherAddedTokenIsATokenOfEachSideAlone) {
  Json student = bpe();
  student["added_tokens"][0]["content"] = "<|stop|>";
  const auto found = map(bpe(), student).value();
  EXPECT_EQ(found.shared.size(), 5U);
  EXPECT_EQ(found.moved, 0);
  EXPECT_THAT(found.teacher_only, ElementsAre(5));
  EXPECT_THAT(found.student_only, ElementsAre(5));
}

TEST_F(VocabularyMapTest, EachIdIsInOnePairAtMost) {
  const Tokenizer once = read(bpe());
  Tokenizer twice = once; // one text with two ids
  twice.tokens.emplace_back(6, "abc");
  for (const bool of_teacher : {true, false}) {
    const auto found = of_teacher ? map_vocabularies(twice, once) : map_vocabularies(once, twice);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->shared.size(), 6U);
    EXPECT_EQ(found->moved, 0); // the pair of equal ids
    EXPECT_THAT(of_teacher ? found->teacher_only : found->student_only, ElementsAre(6));
    EXPECT_THAT(of_teacher ? found->student_only : found->teacher_only, IsEmpty());
  }
}

TEST_F(VocabularyMapTest, DifferencesAreNamed) {
  Json student = bpe();
  student["model"]["vocab"] = {{"a", 0}, {"x\n", 1}, {"b", 2}, {"ab", 3}};
  EXPECT_THAT(
      difference(student),
      AllOf(
          HasSubstr("tokenizer.json and "), HasSubstr("student.json\n"),
          HasSubstr("model.vocab: the student has 3 of the teacher's 5 tokens; it lacks 2 (\"c\"), 4 (\"abc\")"),
          HasSubstr("model.vocab: the teacher has 3 of the student's 4 tokens; it lacks 1 (\"x\\n\")")));
  student = bpe();
  for (int i = 0; i < 20; ++i) {
    student["model"]["vocab"][absl::StrCat("t", i)] = 5 + i;
  }
  EXPECT_THAT(difference(student), AllOf(HasSubstr("9 (\"t4\"), and 15 more"), Not(HasSubstr("10 (\""))));
  student = bpe();
  student["model"]["merges"] = Json::array({Json::array({"a", "b"})});
  EXPECT_THAT(difference(student), HasSubstr("merge 1: teacher \"ab\" + \"c\", student has 1 merges"));
  student = bpe();
  student["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(difference(student), HasSubstr("normalizer: teacher null, student {\"type\":\"NFC\"}"));
  student = bpe();
  student["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_THAT(difference(student), HasSubstr("pre_tokenizer: teacher {\"type\":\"ByteLevel\"}"));
  student = bpe();
  student["model"]["ignore_merges"] = true;
  EXPECT_THAT(difference(student), HasSubstr("model: teacher {}, student {\"ignore_merges\":true}"));
  // An added token of one side may be a token of the vocabulary of the other, and not the other way round.
  student = bpe();
  student["model"]["vocab"].erase("abc");
  EXPECT_THAT(difference(student), HasSubstr("it lacks 4 (\"abc\")"));
  student["added_tokens"].push_back({{"id", 4}, {"content", "abc"}});
  EXPECT_EQ(difference(student), "");
}

TEST_F(VocabularyMapTest, ScoresOfUnigramTokensGoWithTheirTexts) {
  const Json teacher = Json::parse(R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1], ["b", -2]]}})");
  Json student = Json::parse(R"({"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["b", -2], ["a", -1]]}})");
  const auto found = map(teacher, student).value();
  EXPECT_THAT(pairs(found), ElementsAre(std::pair(0, 0), std::pair(1, 2), std::pair(2, 1)));
  student["model"]["vocab"][1][1] = -3;
  EXPECT_THAT(std::string(map(teacher, student).status().message()), HasSubstr("the scores differ"));
}

} // namespace
} // namespace distill::data
