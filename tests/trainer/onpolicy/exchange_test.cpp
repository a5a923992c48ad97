#include "trainer/onpolicy/exchange.h"

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/data/fixtures.h"

namespace distill::onpolicy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ExchangeTest : public data::testing::FolderTest {
 protected:
  ExchangeTest() : requests_{{0, {{5, 6}, {}}, 11}, {1, {{7}, {}}, 12}, {2, {{8}, {}}, 13}} {
    limits_.rows = 90;
    limits_.absent = {33};
  }
  CompletionRules rules() const {
    return {requests_, /*max_new_tokens=*/4, /*vocab_size=*/100, limits_, /*end_ids=*/{2, 3}, "step-1-ab"};
  }
  ReadCompletions read(const std::string& text) {
    const auto done = read_completions(write("output.jsonl", text), rules());
    EXPECT_TRUE(done.ok()) << done.status();
    return *done;
  }
  // The reason why a line is refused.
  std::string refused(const std::string& line) {
    const ReadCompletions done = read(line + "\n");
    EXPECT_THAT(done.completions, IsEmpty());
    EXPECT_THAT(done.bad, SizeIs(1));
    return done.bad.empty() ? "" : done.bad[0];
  }
  // A good line with one of its parts replaced.
  static std::string line(const std::string& part = "", const std::string& by = "") {
    return absl::StrReplaceAll(
        R"({"id":1,"prompt_ids":[7],"completion_ids":[9,4,2],"finish_reason":"stop","logprobs":[-1,-0.5,0]})",
        {{part.empty() ? "\n" : part, by}});
  }

  std::vector<Request> requests_;
  data::TokenLimits::Stream limits_;
};

TEST_F(ExchangeTest, TheTeachersTokensAreReadInOwnLinesAlone) {
  Completion known{{9, 4}, true, {}};
  known.teacher_ids = {70, 3000, 2};
  known.left_off = {1, 2, 3};
  const std::string file = write("completions.jsonl", completion_line(requests_[1], known, "step-1-ab"));
  CompletionRules own = rules();
  const auto engine = read_completions(file, own);
  own.own_lines = true;
  const auto kept = read_completions(file, own);
  ASSERT_TRUE(engine.ok() && kept.ok());
  EXPECT_THAT(engine->completions.at(1).teacher_ids, IsEmpty());
  EXPECT_EQ(engine->completions.at(1).left_off, LeftOff{});
  EXPECT_EQ(kept->completions.at(1).teacher_ids, known.teacher_ids);
  EXPECT_EQ(kept->completions.at(1).left_off, known.left_off);
}

TEST_F(ExchangeTest, WhatIsWrittenIsReadBack) {
  const Completion whole{{9, 4, 2}, false, {-1, -0.5, 0}}, cut{{9, 9, 9, 9}, true, {}};
  const ReadCompletions done =
      read(completion_line(requests_[2], cut, "step-1-ab") + completion_line(requests_[0], whole, "step-1-ab"));
  EXPECT_THAT(done.bad, IsEmpty());
  ASSERT_THAT(done.completions, SizeIs(2));
  EXPECT_EQ(done.completions.at(0).ids, whole.ids);
  EXPECT_EQ(done.completions.at(0).logprobs, whole.logprobs);
  EXPECT_FALSE(done.completions.at(0).truncated);
  EXPECT_TRUE(done.completions.at(2).truncated);
  EXPECT_THAT(done.completions.at(2).logprobs, IsEmpty());
}

TEST_F(ExchangeTest, ARequestHasAllThatAnEngineNeeds) {
  const Sampling sampling{4, 0.7, 0.9, {"\n\n"}, {2, 3}};
  const auto json = nlohmann::json::parse(request_lines({&requests_[0]}, sampling, "step-1-ab"));
  EXPECT_EQ(
      json,
      nlohmann::json::parse(
          R"({"id":0,"prompt_ids":[5,6],"seed":11,"max_new_tokens":4,"temperature":0.7,"top_p":0.9,"stop":["\n\n"],
              "stop_token_ids":[2,3],"weight_version":"step-1-ab"})"));
}

TEST_F(ExchangeTest, OptionalMembersMayBeAbsentOrNull) {
  EXPECT_THAT(read(line()).completions, SizeIs(1));
  EXPECT_THAT(read(line("[-1,-0.5,0]", "null")).completions, SizeIs(1));
  EXPECT_THAT(read(line(R"(,"logprobs":[-1,-0.5,0])", "")).completions, SizeIs(1));
  EXPECT_THAT(read(line("}", R"(,"weight_version":"step-1-ab","teacher":"","more":[1]})")).completions, SizeIs(1));
}

TEST_F(ExchangeTest, EveryMistakeIsNamedWithItsLine) {
  const std::pair<std::string, std::string> mistakes[] = {
      {"", "JSON"},
      {"[1]", "expected an object, found [1]"},
      {line("\"id\":1", "\"id\":3"), "id: expected that of a prompt, 0 to 2, found 3"},
      {line("\"id\":1", "\"id\":-1"), "id: expected"},
      {line("\"id\":1", "\"id\":\"1\""), "found \"1\""},
      {line("\"id\":1,", ""), "id: expected that of a prompt, 0 to 2, found none"},
      {line("[7]", "[8]"), "prompt_ids: expected the 1 ids of prompt 1, found 1 ids, of which [0] is the first"},
      {line("[7]", "[7,7]"), "found 2 ids, of which [1] is the first"},
      {line("\"prompt_ids\":[7],", ""), "prompt_ids: expected a list of token ids, found none"},
      {line("[9,4,2]", "[]"), "completion_ids: expected 1 to 4 tokens (onpolicy.max_new_tokens), found 0"},
      {line("[9,4,2]", "[9,9,9,9,9]"), "found 5"},
      {line("[9,4,2]", "[9,90,2]"), "completion_ids[1]: expected an id below 90, the tokens of both models, found 90"},
      {line("[9,4,2]", "[33,4,2]"), "completion_ids[0]: expected a token that both models' tokenizers have, found 33"},
      {line("[9,4,2]", "[9,3,2]"), "completion_ids[1]: expected no token after the end of the text"},
      {line("[9,4,2]", "[9,4.5,2]"), "completion_ids[1]: expected a token id, found 4.5"},
      {line("[9,4,2]", "[9,-4,2]"), "found -4"},
      {line("[9,4,2]", "\"text\""), "completion_ids: expected a list of token ids, found \"text\""},
      {line("\"stop\"", "\"error\""), "finish_reason: expected stop or length, found \"error\""},
      {line("-0.5,", ""), "logprobs: expected null, or a number for each of the 3 tokens, found 2"},
      {line("-0.5", "0.5"), "logprobs[1]: expected the logarithm of a probability, found 0.5"},
      {line("-0.5", "null"), "logprobs[1]: expected the logarithm of a probability, found null"},
      {line("}", R"(,"weight_version":"step-0-cd"})"), "weight_version: expected step-1-ab, the weights of this round"},
      {line("}", R"(,"teacher":"other"})"), "teacher: expected null: the run has one teacher, found \"other\""}};
  for (const auto& [text, reason] : mistakes) {
    EXPECT_THAT(refused(text), HasSubstr("output.jsonl:1: ")) << text;
    EXPECT_THAT(refused(text), HasSubstr(reason)) << text;
  }
}

TEST_F(ExchangeTest, ASecondCompletionOfAPromptIsRefused) {
  const ReadCompletions done = read(line() + "\n" + line("9", "8") + "\n");
  EXPECT_THAT(done.bad, ElementsAre(HasSubstr("output.jsonl:2: id: a second completion of prompt 1")));
  EXPECT_EQ(done.completions.at(1).ids[0], 9U);
}

TEST_F(ExchangeTest, ALineThatWasCutOffIsNoMistake) {
  const ReadCompletions done = read(line() + "\n{\"id\": 2, \"pro");
  EXPECT_THAT(done.bad, IsEmpty());
  EXPECT_TRUE(done.cut_off);
  EXPECT_THAT(done.completions, SizeIs(1));
  EXPECT_THAT(read(line()).completions, SizeIs(1)); // whole, but for its end
  EXPECT_TRUE(absl::IsNotFound(read_completions(path("none"), rules()).status()));
}

TEST_F(ExchangeTest, NoBytesMakeTheReaderCrash) {
  const std::string good = line() + "\n" + line("\"id\":1,\"prompt_ids\":[7]", "\"id\":2,\"prompt_ids\":[8]") + "\n";
  for (size_t size = 0; size < good.size(); ++size) {
    read(good.substr(0, size));
    std::string changed = good;
    changed[size] = static_cast<char>(changed[size] ^ 0x15);
    read(changed);
  }
  read(std::string(100000, '[') + "\n");
}

} // namespace
} // namespace distill::onpolicy
