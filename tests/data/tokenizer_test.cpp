#include "data/tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "data/shard.h"
#include "tests/data/fixtures.h"
#include "tests/data/tokenizer_folder.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

using TokenizerTest = testing::TokenizerFolderTest;

TEST_F(TokenizerTest, TheHashIsTheOneThatTokenizePyComputes) {
  const auto tokenizer = read_tokenizer(DISTILL_GOLDEN).value();
  const auto shards = open_shards(DISTILL_GOLDEN).value();
  EXPECT_EQ(base::hex(tokenizer.hash()), base::hex(shards[0].tokenizer_hash()));
  EXPECT_EQ(tokenizer.vocab_size(), static_cast<int64_t>(shards[0].header().vocab_size));
}

// The value that scripts/token_shards/tokenizer_hash.py gives for the same JSON (its test has it too).
TEST_F(TokenizerTest, TheHashOfASmallTokenizerIsFixed) {
  EXPECT_EQ(base::hex(read(bpe()).hash()), "08807459b3ded213b6da34e201713c57104a895b0266bbeebd70cda5b71a5804");
  const Json unigram = Json::parse(
      R"({"added_tokens": [{"id": 3, "content": "é\u0000"}],
          "model": {"type": "Unigram", "vocab": [["<unk>", 0], ["▁a", -1.25], ["b", -0.1]]}})");
  EXPECT_EQ(base::hex(read(unigram).hash()), "9aa2e5fe182a3d1d0f0d4a09e18d2eb30dde3ef5477fc26af0ffd0c190f33e83");
}

TEST_F(TokenizerTest, SpellingDoesNotMatterMeaningDoes) {
  const base::Digest hash = read(bpe()).hash();
  Json same = bpe();
  same["model"]["merges"] = Json::array({"a b", "ab c"}); // the older spelling
  same["model"].erase("byte_fallback");
  same["pre_tokenizer"] = Json{{"type", "ByteLevel"}};
  same["added_tokens"].push_back({{"id", 2}, {"content", "c"}}); // also in the vocabulary
  same["truncation"] = {{"max_length", 7}};
  EXPECT_EQ(read(same).hash(), hash);
  Json other = bpe();
  other["model"]["merges"] = Json::parse(R"([["ab", "c"], ["a", "b"]])");
  EXPECT_NE(read(other).hash(), hash);
  other = bpe();
  other["added_tokens"][0]["content"] = "<|stop|>";
  EXPECT_NE(read(other).hash(), hash);
}

TEST_F(TokenizerTest, ReadsAFolderAndCountsAddedTokens) {
  write("tokenizer.json", bpe().dump());
  const auto tokenizer = read_tokenizer(folder_.string()).value();
  EXPECT_EQ(tokenizer.vocab_size(), 6);
  EXPECT_EQ(tokenizer.path, path("tokenizer.json"));
}

TEST_F(TokenizerTest, TokensOfTheFilesBesideItAreAdded) {
  const base::Digest alone = read(bpe()).hash();
  Json json = bpe();
  json["padding"] = {{"pad_token", "<|pad|>"}};
  write("tokenizer_config.json", R"({
    "added_tokens_decoder": {"9": {"content": "<|z|>"}, "7": {"content": "<|y|>", "special": true},
                             "5": {"content": "<|end|>", "special": false}},
    "bos_token": "a", "zz_token": "<|own|>", "aa_token": {"__type": "AddedToken", "content": "<|typed|>"},
    "bb_token": {"content": "not a token"}, "additional_special_tokens": ["<|extra|>", "<|y|>"]})");
  write("special_tokens_map.json", R"({"eos_token": "not read"})");
  const Tokenizer tokenizer = read(json);
  std::vector<std::string> found;
  for (const AddedToken& token : tokenizer.added) {
    found.push_back(absl::StrCat(token.id, " ", token.text, token.special ? " special" : ""));
  }
  EXPECT_EQ(
      found,
      (std::vector<std::string>{
          "0 a special", "5 <|end|>", "6 <|y|> special", "7 <|z|>", "8 <|pad|> special", "9 <|typed|> special",
          "10 <|own|> special", "11 <|extra|> special"}));
  EXPECT_EQ(tokenizer.vocab_size(), 12);
  EXPECT_NE(tokenizer.hash(), alone);
}

TEST_F(TokenizerTest, OlderFilesBesideItCountWithoutAddedTokensDecoder) {
  write("tokenizer_config.json", R"({"eos_token": "<|old|>"})");
  write("special_tokens_map.json", R"({"eos_token": {"content": "<|eos|>"}, "additional_special_tokens": ["<|x|>"]})");
  write("added_tokens.json", R"({"<|x|>": 30, "<|w|>": 29})");
  std::vector<std::string> found;
  for (const AddedToken& token : read(bpe()).added) {
    found.push_back(absl::StrCat(token.id, " ", token.text, token.special ? " special" : ""));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"5 <|end|> special", "6 <|w|>", "7 <|x|> special", "8 <|eos|> special"}));
}

TEST_F(TokenizerTest, BadFilesBesideItAreErrorsThatNameTheKey) {
  const auto message = [&](const std::string& file, const std::string& content) {
    write(file, content);
    const std::string text(read_tokenizer(write("tokenizer.json", bpe().dump())).status().message());
    write(file, "{}");
    return text;
  };
  EXPECT_THAT(message("tokenizer_config.json", "[]"), HasSubstr("tokenizer_config.json: expected a JSON object"));
  EXPECT_THAT(
      message("tokenizer_config.json", R"({"added_tokens_decoder": []})"),
      HasSubstr("tokenizer_config.json: `added_tokens_decoder`: expected an object, found []"));
  EXPECT_THAT(
      message("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
      HasSubstr("`added_tokens_decoder.x`: expected an id and an object with `content`"));
  EXPECT_THAT(message("tokenizer_config.json", R"({"eos_token": 3})"), HasSubstr("`eos_token`: expected a token"));
  EXPECT_THAT(
      message("tokenizer_config.json", R"({"extra_special_tokens": 3})"),
      HasSubstr("`extra_special_tokens`: expected a list, found 3"));
  EXPECT_THAT(message("added_tokens.json", R"({"a": "1"})"), HasSubstr("added_tokens.json: `a`: expected an id"));
  Json gaps = bpe();
  gaps["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 5}};
  gaps["added_tokens"] = Json::parse(R"([{"id": 5, "content": "abc"}, {"id": 5, "content": "<|x|>"}])");
  EXPECT_THAT(
      std::string(read_tokenizer(write("tokenizer.json", gaps.dump())).status().message()),
      HasSubstr("added tokens \"abc\" and \"<|x|>\": expected an id for each, found 5 for both"));
}

TEST_F(TokenizerTest, BadFilesAreErrorsThatNameTheKey) {
  const auto message = [&](const std::string& content) {
    return std::string(read_tokenizer(write("bad.json", content)).status().message());
  };
  const auto damaged = [&](const std::string& pointer, const Json& value) {
    Json json = bpe();
    json[Json::json_pointer(pointer)] = value;
    return message(json.dump());
  };
  EXPECT_THAT(message("{\"model\": "), AllOf(HasSubstr("bad.json: not valid JSON"), HasSubstr("column 11")));
  EXPECT_THAT(message("\xff\xfe"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(""), HasSubstr("the file is empty"));
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(message("{\"model\": " + deep), HasSubstr("nested at most 100 deep, found 1000001"));
  EXPECT_THAT(message("{\"model\": \"\\\"" + deep + "\"}"), HasSubstr("`model`: expected an object, found \"\\\"[[[["));
  EXPECT_THAT(message("[]"), HasSubstr("`tokenizer.json`: expected an object, found []"));
  EXPECT_THAT(message("{}"), HasSubstr("`model`: expected an object, found null"));
  EXPECT_THAT(damaged("/model/vocab", 3), HasSubstr("`model.vocab`: expected an object of token: id, found 3"));
  EXPECT_THAT(message(R"({"model": {"vocab": {}}})"), HasSubstr("`model.vocab`: expected at least one token"));
  EXPECT_THAT(
      damaged("/model/vocab/b", -1), HasSubstr("`model.vocab[\"b\"]`: expected an id of 0 to 2^32 - 1, found -1"));
  EXPECT_THAT(damaged("/model/vocab/b", 1.5), HasSubstr("`model.vocab[\"b\"]`: expected an id, found 1.5"));
  EXPECT_THAT(damaged("/model/vocab/b", int64_t{1} << 32), HasSubstr("found 4294967296"));
  EXPECT_THAT(damaged("/model/type", 1), HasSubstr("`model.type`: expected a string, found 1"));
  EXPECT_THAT(damaged("/model/merges/1", "abc"), HasSubstr("`model.merges[1]`: expected two tokens"));
  EXPECT_THAT(damaged("/model/merges/1", Json{"a"}), HasSubstr("`model.merges[1]`: expected [token, token]"));
  EXPECT_THAT(damaged("/added_tokens", 1), HasSubstr("`added_tokens`: expected a list, found 1"));
  EXPECT_THAT(damaged("/added_tokens/0/id", "5"), HasSubstr("`added_tokens[0].id`: expected an id, found \"5\""));
  EXPECT_THAT(damaged("/added_tokens/0/content", 5), HasSubstr("`added_tokens[0].content`: expected a string"));
  EXPECT_THAT(std::string(read_tokenizer(path("nowhere")).status().message()), HasSubstr("nowhere"));
  EXPECT_THAT(std::string(read_tokenizer(folder_.string()).status().message()), HasSubstr("save_pretrained"));
}

} // namespace
} // namespace distill::data
