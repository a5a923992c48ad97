#include "trainer/onpolicy/teacher_tokens.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/data/tokenizer_folder.h"

namespace distill::onpolicy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The student's tokens: 0 <end>, 1 a, 2 b, 3 c, 4 ab, 5 <mine>. The teacher's: 0 a, 1 b, 2 c, 3 bc, 4 <end>.
class TeacherTokensTest : public data::testing::TokenizerFolderTest {
 protected:
  void SetUp() override {
    TokenizerFolderTest::SetUp();
    const data::Tokenizer own = read(byte_level({"<end>", "a", "b", "c", "ab", "<mine>"}), "student.json");
    const data::Tokenizer its = read(byte_level({"a", "b", "c", "bc", "<end>"}), "teacher.json");
    auto made = data::TextAlignment::make(own, its, {}).value();
    alignment_ = std::make_shared<const data::TextAlignment>(std::move(made));
    inputs_.alignments = {alignment_};
    for (int64_t id = 0; id < 3; ++id) {
      requests_.push_back({id, {{1, 2}, {0, 1, 2}}, 11});
    }
  }
  // What is left of a completion, of so many of its tokens in these of the teacher's.
  absl::StatusOr<Completion> set(
      std::vector<uint32_t> ids, bool truncated, TeacherTokens teacher, int64_t room = 100) const {
    Completion completion{std::move(ids), truncated, {}};
    completion.logprobs.assign(completion.ids.size(), -1.0);
    const absl::Status status = set_teacher_tokens(std::move(teacher), *alignment_, room, completion);
    return status.ok() ? absl::StatusOr<Completion>(completion) : status;
  }
  std::vector<std::string> read_answers(const std::string& lines) {
    std::vector<std::string> bad;
    const absl::Status status = read_teacher_tokens(
        write("answers.jsonl", lines), requests_, inputs_, /*teacher_seq_len=*/32, completions_, bad);
    EXPECT_TRUE(status.ok()) << status;
    return bad;
  }

  std::shared_ptr<const data::TextAlignment> alignment_;
  RoundInputs inputs_;
  std::vector<Request> requests_;
  std::map<int64_t, Completion> completions_;
};

TEST_F(TeacherTokensTest, ACompletionThatHasEndedIsLearnedAsAWhole) {
  const auto whole = set({4, 3, 0}, false, {3, {0, 3, 4}}).value(); // ab c <end>; a bc <end>
  EXPECT_THAT(whole.ids, ElementsAre(4, 3, 0));
  EXPECT_THAT(whole.teacher_ids, ElementsAre(0, 3, 4));
  EXPECT_EQ(whole.left_off, LeftOff{});
}

TEST_F(TeacherTokensTest, ATruncatedOneEndsBeforeALastSpan) {
  const auto span = set({1, 4, 3}, true, {3, {0, 0, 3}}).value(); // a ab c; a a bc: the text might go on otherwise
  EXPECT_THAT(span.ids, ElementsAre(1));
  EXPECT_THAT(span.logprobs, SizeIs(1));
  EXPECT_THAT(span.teacher_ids, ElementsAre(0));
  EXPECT_EQ(span.left_off, (LeftOff{0, 2, 0}));
  const auto token = set({4, 3, 1}, true, {3, {0, 3, 0}}); // its last piece is one token of both
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_THAT(token->ids, SizeIs(3));
  EXPECT_THAT(set({4, 3}, true, {2, {0, 3}}).status().message(), HasSubstr("truncated before both models had"));
}

TEST_F(TeacherTokensTest, AnIncompleteCharacterIsLeftOff) {
  const auto cut = set({1, 2, 3}, true, {2, {0, 1}}).value();
  EXPECT_THAT(cut.ids, ElementsAre(1, 2));
  EXPECT_EQ(cut.left_off, (LeftOff{1, 0, 0}));
  EXPECT_THAT(set({1, 2}, true, {0, {}}).status().message(), HasSubstr("no character of it is complete"));
}

TEST_F(TeacherTokensTest, ACompletionEndsWhereTheTeachersSequenceIsFull) {
  const auto cut = set({1, 4, 3, 1, 0}, false, {5, {0, 0, 3, 0, 4}}, /*room=*/3).value();
  EXPECT_THAT(cut.ids, ElementsAre(1, 4, 3));
  EXPECT_THAT(cut.teacher_ids, ElementsAre(0, 0, 3));
  EXPECT_EQ(cut.left_off, (LeftOff{0, 0, 2}));
  EXPECT_THAT(set({4, 3, 0}, false, {3, {0, 3, 4}}, /*room=*/1).status().message(), HasSubstr("data.teacher_seq_len"));
}

TEST_F(TeacherTokensTest, OtherTextsAndIdsAreRefused) {
  EXPECT_THAT(set({1, 2}, false, {2, {0, 2}}).status().message(), HasSubstr("the texts of student and teacher differ"));
  EXPECT_THAT(set({1, 2}, false, {2, {0}}).status().message(), HasSubstr("the teacher's has ended"));
  EXPECT_THAT(set({1}, false, {1, {7}}).status().message(), HasSubstr("teacher_ids[0]: expected an id with a row"));
  EXPECT_THAT(set({5}, false, {1, {}}).status().message(), HasSubstr("it has no text"));
}

TEST_F(TeacherTokensTest, TheCommandIsAskedForWhatIsNotKnown) {
  completions_ = {{0, {{1, 2}, true, {}}}, {1, {{4, 0}, false, {}}}};
  completions_[0].teacher_ids = {0, 1};
  const std::string lines = retokenize_lines(requests_, completions_, inputs_);
  const auto line = nlohmann::json::parse(lines); // one line
  EXPECT_EQ(line["id"], 1);
  EXPECT_EQ(line["completion_ids"], (std::vector<int>{4, 0}));
  EXPECT_EQ(line["student_tokenizer"], path("student.json"));
  EXPECT_EQ(line["teacher_tokenizer"], path("teacher.json"));
  inputs_.alignments = {nullptr};
  EXPECT_EQ(retokenize_lines(requests_, completions_, inputs_), "");
}

TEST_F(TeacherTokensTest, EachCompletionWithoutAGoodAnswerIsRemovedAndNamed) {
  completions_ = {{0, {{1}, false, {}}}, {1, {{2}, false, {}}}, {2, {{3}, false, {}}}};
  const std::string good = R"({"id": 1, "tokens": 1, "teacher_ids": [1]})";
  const std::vector<std::string> bad =
      read_answers(good + "\nnothing\n" + R"({"id": 9})" + "\n" + R"({"id": 0, "error": "no text"})" + "\n");
  ASSERT_THAT(completions_, SizeIs(1));
  EXPECT_THAT(completions_.at(1).teacher_ids, ElementsAre(1));
  EXPECT_THAT(
      bad,
      ElementsAre(
          HasSubstr("answers.jsonl:2: no JSON"),
          HasSubstr("answers.jsonl:3: id: expected that of a completion, found 9"),
          HasSubstr("answers.jsonl:4: completion 0: no text"),
          HasSubstr("completion 2: no good line with the teacher's tokens")));
}

TEST_F(TeacherTokensTest, AnswersThatAreNoTokensAreNamed) {
  const auto refused = [&](const std::string& members) {
    completions_ = {{0, {{1}, false, {}}}};
    const std::vector<std::string> bad = read_answers(R"({"id": 0, )" + members + "}\n");
    EXPECT_THAT(completions_, IsEmpty());
    return bad.size() == 1 ? bad[0] : "";
  };
  EXPECT_THAT(refused(R"("tokens": 2, "teacher_ids": [0])"), HasSubstr("tokens: expected how many of its 1 tokens"));
  EXPECT_THAT(refused(R"("tokens": 1)"), HasSubstr("teacher_ids: expected a list of token ids, found null"));
  EXPECT_THAT(refused(R"("tokens": 1, "teacher_ids": [-1])"), HasSubstr("teacher_ids[0]: expected a token id"));
  EXPECT_THAT(refused(R"("tokens": 1, "teacher_ids": [2])"), HasSubstr("the texts of student and teacher differ"));
}

} // namespace
} // namespace distill::onpolicy
