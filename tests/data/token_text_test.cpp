#include "data/token_text.h"

#include <gmock/gmock.h>

#include "data/base/utf8.h"

namespace distill::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tokenizer with_decoder(const std::string& decoder) {
  Tokenizer tokenizer;
  tokenizer.path = "tokenizer.json";
  tokenizer.model = "BPE";
  tokenizer.decoder = decoder;
  return tokenizer;
}

std::vector<std::string> texts(const std::vector<TokenPiece>& pieces) {
  std::vector<std::string> out;
  for (const TokenPiece& piece : pieces) {
    out.push_back(piece.text);
  }
  return out;
}

std::vector<bool> shares(const std::vector<TokenPiece>& pieces) {
  std::vector<bool> out;
  for (const TokenPiece& piece : pieces) {
    out.push_back(piece.shares_character);
  }
  return out;
}

// "€" is E2 82 AC: "â", "Ĥ" and "¬" in GPT-2's alphabet.
TEST(TokenText, ACharacterBelongsToTheTokenOfItsLastByte) {
  Tokenizer tokenizer = with_decoder(R"({"type": "ByteLevel"})");
  tokenizer.tokens = {{0, "aâ"}, {1, "Ĥ"}, {2, "¬b"}, {3, "c"}};
  const TokenText text = *TokenText::make(tokenizer);
  const auto pieces = text.decode({0, 1, 2, 3});
  EXPECT_THAT(texts(pieces), ElementsAre("a", "", "€b", "c"));
  EXPECT_THAT(shares(pieces), ElementsAre(true, true, true, false));
  EXPECT_EQ(text.text({0, 1, 3}), "a\uFFFDc"); // E2 82 could begin a character: one mark for both bytes
  EXPECT_EQ(text.text({1, 1}), "\uFFFD\uFFFD");
}

TEST(TokenText, ByteTokensThatAreNoTextAreAMarkEach) {
  Tokenizer tokenizer = with_decoder(
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  tokenizer.tokens = {{0, "<0xE2>"}, {1, "<0x82>"}, {2, "<0xAC>"}, {3, "▁a▁"}, {4, "<0xZZ>"}};
  const TokenText text = *TokenText::make(tokenizer);
  EXPECT_THAT(texts(text.decode({3, 0, 1, 2, 3})), ElementsAre("a ", "", "", "€", " a "));
  EXPECT_THAT(texts(text.decode({0, 1, 3, 4})), ElementsAre("\uFFFD", "\uFFFD", " a ", "<0xZZ>"));
}

TEST(TokenText, AddedTokensComeBeforeTheModelsAndUnknownIdsHaveNoText) {
  Tokenizer tokenizer = with_decoder(R"({"type": "Fuse"})");
  tokenizer.tokens = {{0, "a"}, {1, "<pad>"}, {1, "zz"}};
  tokenizer.added = {{1, "zz", true}};
  const TokenText text = *TokenText::make(tokenizer);
  const auto pieces = text.decode({0, 1, 7});
  EXPECT_THAT(texts(pieces), ElementsAre("a", "zz", ""));
  EXPECT_TRUE(pieces[1].special && pieces[1].known && !pieces[2].known);
  EXPECT_EQ(*text.token(1), "zz");
  EXPECT_EQ(text.token(7), nullptr);
}

TEST(TokenText, AnUnknownDecoderIsNamed) {
  const auto text = TokenText::make(with_decoder(R"({"type": "CTC"})"));
  EXPECT_TRUE(absl::IsUnimplemented(text.status()));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("tokenizer.json: `decoder`: expected"));
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("CTC"));
}

// Table 3-8 of the Unicode standard: what is replaced by one U+FFFD each.
TEST(Utf8, StepsAreTheMaximalSubparts) {
  const auto steps = [](const std::string& text) {
    std::vector<int> bytes;
    for (size_t at = 0; at < text.size();) {
      const base::Utf8Step step = base::utf8_step(text, at);
      bytes.push_back(static_cast<int>(step.bytes) * (step.valid ? 1 : -1));
      at += step.bytes;
    }
    return bytes;
  };
  EXPECT_THAT(steps("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), ElementsAre(-1, -1, -1, -1, -1, -1, -1, -1, 1));
  EXPECT_THAT(steps("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), ElementsAre(-1, -1, -1, -1, -1, -1, -1, -1, 1));
  EXPECT_THAT(steps("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), ElementsAre(-1, -1, -1, -1, -1, 1, -1, -1, 1));
  EXPECT_THAT(steps("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), ElementsAre(-2, -1, -3, -2, 1));
  EXPECT_THAT(steps("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), ElementsAre(1, 2, 3, 4));
}

TEST(Utf8, CharactersAreWrittenAsTheyWereRead) {
  for (const char32_t character : {U'a', U'é', U'€', U'😀', U'\U0010FFFF'}) {
    std::string text;
    base::append_utf8(text, character);
    EXPECT_EQ(base::utf8_step(text, 0).character, character);
    EXPECT_EQ(base::utf8_step(text, 0).bytes, text.size());
  }
}

} // namespace
} // namespace distill::data
