#include "data/text_alignment.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "data/dataset.h"
#include "data/shard_writer.h"
#include "tests/data/tokenizer_folder.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Piece = TextAlignment::Piece;

class TextAlignmentTest : public testing::TokenizerFolderTest {
 protected:
  // A tokenizer as Llama 2's: spaces as U+2581, bytes as <0x..>.
  static Json sentence_piece(const std::vector<std::string>& tokens) {
    Json json = byte_level(tokens);
    json["added_tokens"] = Json::array();
    json["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
    return json;
  }
  TextAlignment make(const Json& student, const Json& teacher, const std::vector<std::string>& pairs = {}) {
    const Tokenizer own = read(student, "student.json"), its = read(teacher, "teacher.json");
    const auto read = read_token_pairs(pairs, own, its);
    TORCH_CHECK(read.ok(), read.status().ToString());
    auto made = TextAlignment::make(own, its, *read);
    TORCH_CHECK(made.ok(), made.status().ToString());
    return *std::move(made);
  }
  static std::vector<int64_t> positions(size_t count) {
    std::vector<int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  static absl::StatusOr<std::vector<Piece>> pieces(
      const TextAlignment& alignment, const std::vector<int64_t>& own, const std::vector<int64_t>& its) {
    const std::vector<int64_t> at = positions(own.size()), its_at = positions(its.size());
    TextAlignment::Pieces out;
    const absl::Status status = alignment.align({own, at}, {its, its_at}, out);
    return status.ok() ? absl::StatusOr<std::vector<Piece>>(out.pieces) : status;
  }
};

TEST_F(TextAlignmentTest, TokensOfTheSameBytesArePairsWhateverTheirSpelling) {
  const TextAlignment found = make(
      sentence_piece({"<unk>", "<0x41>", "A", "▁the", "<0x0A>", "x"}), byte_level({"Ċ", "Ġthe", "A", "yz", "<unk>"}));
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const auto& [student, teacher] : found.map().shared) {
    pairs.emplace_back(student, teacher);
  }
  // "A" is the token, not the byte; "<unk>" is a text in one of them, and special in the other.
  EXPECT_THAT(pairs, ElementsAre(std::pair(2, 2), std::pair(3, 1), std::pair(4, 0)));
  EXPECT_THAT(found.map().student_only, ElementsAre(0, 1, 5));
  EXPECT_THAT(found.map().teacher_only, ElementsAre(3, 4));
  EXPECT_EQ(found.map().moved, 2);
}

TEST_F(TextAlignmentTest, ATokenThatBeginsALongerOneOfOneSideAloneIsAmbiguous) {
  // The teacher alone has "abcd", which the student writes as "abc" and "d"; the student alone has "bd", which the
  // teacher writes as "b" and "d". "ab" and "d" begin neither.
  const TextAlignment found = make(
      byte_level({"a", "b", "d", "ab", "abc", "bd", "<x>"}), byte_level({"abcd", "abc", "ab", "d", "b", "a", "<xy>"}));
  EXPECT_THAT(found.ambiguous(), ElementsAre(1, 4));
}

TEST_F(TextAlignmentTest, PiecesEndWhereBothHaveABoundary) {
  const TextAlignment found = make(byte_level({"a", "b", "c", "ab", "bc"}), byte_level({"c", "b", "a", "abc", "ab"}));
  // abc ab c a | as ab c, ab, c, a and abc, a b, c, a
  const auto split = pieces(found, {3, 2, 3, 2, 0}, {3, 2, 1, 0, 2}).value();
  EXPECT_THAT(split, ElementsAre(Piece{0, 2, 0, 1}, Piece{2, 3, 1, 3}, Piece{3, 4, 3, 4}, Piece{4, 5, 4, 5}));
  EXPECT_TRUE(split[0].is_span());
  EXPECT_FALSE(split[2].is_span());
}

TEST_F(TextAlignmentTest, SpecialTokensArePairsByTextOrByConfigurationAndElsePassedOver) {
  const Json own = byte_level({"a", "b", "<end>", "<im_end>", "<x>"}), its = byte_level({"b", "a", "<end>", "<eot>"});
  const TextAlignment paired = make(own, its, {"<im_end>=<eot>"});
  const auto split = pieces(paired, {0, 3, 4, 1, 2}, {1, 3, 0, 2}).value();
  EXPECT_THAT(split, ElementsAre(Piece{0, 1, 0, 1}, Piece{1, 2, 1, 2}, Piece{3, 4, 2, 3}, Piece{4, 5, 3, 4}));

  const TextAlignment unpaired = make(own, its);
  const std::vector<int64_t> ids = {0, 3, 4, 1, 2}, its_ids = {1, 3, 0, 2}, at = positions(5), its_at = positions(4);
  TextAlignment::Pieces out;
  ASSERT_TRUE(unpaired.align({ids, at}, {its_ids, its_at}, out).ok());
  EXPECT_THAT(out.pieces, ElementsAre(Piece{0, 1, 0, 1}, Piece{3, 4, 2, 3}, Piece{4, 5, 3, 4}));
  EXPECT_THAT(out.student_passed, ElementsAre(3, 4));
  EXPECT_THAT(out.teacher_passed, ElementsAre(3));
}

TEST_F(TextAlignmentTest, ASpaceThatATokenizerPutsBeforeATextIsNoPartOfIt) {
  const TextAlignment found = make(sentence_piece({"▁a", "b", "▁"}), byte_level({"a", "b", "ab", "Ġa"}));
  EXPECT_THAT(*pieces(found, {0, 1}, {0, 1}), ElementsAre(Piece{0, 1, 0, 1}, Piece{1, 2, 1, 2}));
  EXPECT_THAT(*pieces(found, {0, 1}, {2}), ElementsAre(Piece{0, 2, 0, 1}));
  EXPECT_THAT(*pieces(found, {0, 1}, {3, 1}), ElementsAre(Piece{0, 1, 0, 1}, Piece{1, 2, 1, 2}));
  EXPECT_THAT(*pieces(found, {2, 0}, {3}), ElementsAre(Piece{1, 2, 0, 1})); // the space is a token of its own
  EXPECT_FALSE(pieces(found, {2, 2, 0}, {0}).ok());
}

TEST_F(TextAlignmentTest, OtherTextsAreErrorsThatShowBoth) {
  const TextAlignment found = make(byte_level({"a", "b", "ab"}), byte_level({"a", "b", "ba"}));
  EXPECT_THAT(
      pieces(found, {0, 1}, {0, 0}).status().message(),
      AllOf(HasSubstr("differ"), HasSubstr("\"b\" (token 1)"), HasSubstr("\"a\" (token 1)")));
  EXPECT_THAT(
      pieces(found, {0}, {0, 1}).status().message(), AllOf(HasSubstr("the student's has ended"), HasSubstr("\"b\"")));
  // Token 1 of the student's is of another part of the text than token 0.
  const std::vector<int64_t> ids = {0, 1}, at = {3, 9}, its_ids = {1}, its_at = {4};
  const TextAlignment joined = make(byte_level({"a", "b"}), byte_level({"a", "ab"}));
  TextAlignment::Pieces out;
  EXPECT_THAT(joined.align({ids, at}, {its_ids, its_at}, out).message(), HasSubstr("reaches over"));
}

TEST_F(TextAlignmentTest, PairsThatAreNoneAreErrors) {
  const Tokenizer own = read(byte_level({"a", "<x>", "<x>=<y>"}), "student.json");
  const Tokenizer its = read(byte_level({"a", "<y>", "<y>=<z>", "<z>"}), "teacher.json");
  EXPECT_TRUE(read_token_pairs({"<x>=<y>"}, own, its).ok());
  EXPECT_THAT(read_token_pairs({"<x>"}, own, its).status().message(), HasSubstr("teacher.token_pairs"));
  EXPECT_THAT(read_token_pairs({"a=<y>"}, own, its).status().message(), HasSubstr("found \"a=<y>\""));
  EXPECT_THAT(read_token_pairs({"<x>=<y>=<z>"}, own, its).status().message(), HasSubstr("as more than one pair"));
  EXPECT_THAT(
      TextAlignment::make(own, its, {{"<x>", "<y>"}, {"<x>", "<y>=<z>"}}).status().message(),
      HasSubstr("each token once"));
}

// Random splittings of random texts: pieces have the same bytes, and no shorter beginnings do.
TEST_F(TextAlignmentTest, RandomTextsAreSplitAsTheDefinitionSays) {
  const std::vector<std::string> own = {"a", "b", "c", "ab", "bc", "abc", "ca", "cab"};
  const std::vector<std::string> its = {"c", "b", "a", "ba", "aa", "cb", "abca", "bb"};
  const TextAlignment found = make(byte_level(own), byte_level(its));
  std::mt19937 random(7);
  const auto split = [&](const std::string& text, const std::vector<std::string>& tokens) {
    std::vector<int64_t> ids;
    for (size_t at = 0; at < text.size();) {
      const auto id = static_cast<size_t>(random() % tokens.size());
      if (text.compare(at, tokens[id].size(), tokens[id]) == 0) {
        ids.push_back(static_cast<int64_t>(id));
        at += tokens[id].size();
      }
    }
    return ids;
  };
  const auto boundaries = [](const std::vector<int64_t>& ids, const std::vector<std::string>& tokens) {
    std::vector<size_t> ends = {0};
    for (const int64_t id : ids) {
      ends.push_back(ends.back() + tokens[static_cast<size_t>(id)].size());
    }
    return ends;
  };
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (size_t i = 0; i < 1 + random() % 20; ++i) {
      text += static_cast<char>('a' + random() % 3);
    }
    const std::vector<int64_t> a = split(text, own), b = split(text, its);
    const std::vector<size_t> own_ends = boundaries(a, own), its_ends = boundaries(b, its);
    std::vector<Piece> expected;
    Piece piece;
    for (size_t end = 1; end <= text.size(); ++end) {
      const auto i = std::find(own_ends.begin(), own_ends.end(), end),
                 j = std::find(its_ends.begin(), its_ends.end(), end);
      if (i != own_ends.end() && j != its_ends.end()) {
        piece = {piece.end, i - own_ends.begin(), piece.teacher_end, j - its_ends.begin()};
        expected.push_back(piece);
      }
    }
    const auto pieces_found = pieces(found, a, b);
    ASSERT_TRUE(pieces_found.ok()) << text << ": " << pieces_found.status();
    ASSERT_EQ(*pieces_found, expected) << text;
  }
}

// Data in the tokens of both.
class AlignedDataTest : public TextAlignmentTest {
 protected:
  void SetUp() override {
    TextAlignmentTest::SetUp(); // makes the folder that files are written to
    student_ = read(byte_level({"a", "b", "c", "ab", "bc"}), "student.json");
    teacher_ = read(byte_level({"c", "b", "a", "abc", "ab"}), "teacher.json");
    auto made = TextAlignment::make(*student_, *teacher_, {});
    TORCH_CHECK(made.ok(), made.status().ToString());
    made->set_teacher_rows({10, 11, 12, 13, 14});
    alignment_ = std::make_shared<const TextAlignment>(*std::move(made));
  }

  std::string shard(const std::vector<std::pair<std::vector<uint32_t>, std::vector<uint32_t>>>& documents) {
    ShardSpec spec{.vocab_size = 5, .tokenizer_hash = student_->hash(), .loss_mask = true};
    spec.teacher_vocab_size = 5;
    spec.teacher_tokenizer_hash = teacher_->hash();
    ShardWriter writer(spec);
    for (const auto& [own, its] : documents) {
      const std::vector<uint8_t> mask(own.size(), 1), its_mask(its.size(), 1);
      TORCH_CHECK(writer.add(own, mask, {its, its_mask}).ok());
    }
    return write("data.dtok", std::string(reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size()));
  }

  DataOptions options(const std::string& path, int64_t seq_len) const {
    DataOptions options;
    options.sources = {{path}};
    options.seq_len = seq_len;
    options.shuffle = false;
    options.once = true;
    options.alignments = {alignment_};
    return options;
  }

  static std::vector<int64_t> values(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.flatten().to(at::kLong).contiguous();
    return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
  }

  std::optional<Tokenizer> student_, teacher_;
  std::shared_ptr<const TextAlignment> alignment_;
};

TEST_F(AlignedDataTest, BatchesHaveThePiecesWhoseTokensHaveAPredecessorInBothTexts) {
  // ab c ab c a, and abc a b c a
  const auto data = Dataset::open(options(shard({{{3, 2, 3, 2, 0}, {3, 2, 1, 0, 2}}}), 7)).value();
  const AlignmentStats stats = *data->stats()[0].alignment;
  EXPECT_EQ(stats.tokens, 5);
  EXPECT_EQ(stats.pieces, 4);
  EXPECT_EQ(stats.spans, 2);
  EXPECT_EQ(stats.span_tokens, 3);
  const auto batch = data->batch(0, 1).value();
  EXPECT_THAT(values(batch.targets_BS), ElementsAre(2, 3, 2, 0, -100, -100, -100));
  EXPECT_THAT(values(batch.teacher->tokens_BT), ElementsAre(13, 12, 11, 10, 12, 0, 0));
  const AlignedPieces& pieces = *batch.teacher->aligned;
  EXPECT_EQ(values(batch.teacher->rows_BS)[1], 0);
  EXPECT_EQ(values(batch.teacher->rows_BS)[2], 2);
  EXPECT_THAT(values(pieces.rows_P), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(pieces.pieces_P), ElementsAre(0, 1, 2));
  EXPECT_THAT(values(pieces.first_rows_Z), ElementsAre(1, 2, 3));
  EXPECT_THAT(values(pieces.teacher_rows_Q), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(pieces.teacher_pieces_Q), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(values(pieces.teacher_targets_Q), ElementsAre(12, 11, 10, 12));
  EXPECT_EQ(pieces.pieces, 3);
  EXPECT_EQ(pieces.spans, 1);
  EXPECT_EQ(pieces.span_tokens, 1);
  EXPECT_EQ(pieces.teacher_span_tokens, 2);
}

TEST_F(AlignedDataTest, ALongDocumentIsCutWhereBothHaveABoundary) {
  const std::string path = shard({{{3, 2, 3, 2, 0}, {3, 2, 1, 0, 2}}, {{0, 1}, {2, 1}}});
  const auto shards = open_shards(path).value();
  const auto fits = [&](int64_t seq_len, int64_t teacher_seq_len) {
    const TextLengths found = fit_texts(shards.front(), 0, seq_len, teacher_seq_len, alignment_.get());
    return std::tuple(found.tokens, found.teacher_tokens, found.cut);
  };
  EXPECT_EQ(fits(5, 5), std::tuple(5, 5, false));
  EXPECT_EQ(fits(4, 9), std::tuple(4, 4, true));
  EXPECT_EQ(fits(9, 3), std::tuple(3, 3, true));
  EXPECT_EQ(fits(2, 2), std::tuple(0, 0, true)); // the first piece has no target
  const auto data = Dataset::open(options(path, 3)).value();
  EXPECT_EQ(data->stats()[0].cut_documents, 1);
  EXPECT_TRUE(data->batch(0, data->num_samples()).ok());
}

TEST_F(AlignedDataTest, OtherDataAreRefusedWithTheFileAndTheDocument) {
  const std::string good = shard({{{3}, {4}}});
  DataOptions without = options(good, 4);
  without.alignments.clear();
  EXPECT_THAT(Dataset::open(without).status().message(), AllOf(HasSubstr("data.dtok: document 0"), HasSubstr("bytes")));
  without.teacher_stream = false;
  EXPECT_TRUE(Dataset::open(without).ok());
  const std::string different = shard({{{3, 0}, {4, 2}}, {{3, 2}, {3, 2}}});
  EXPECT_THAT(
      Dataset::open(options(different, 4)).status().message(),
      AllOf(HasSubstr("data.dtok: document 1"), HasSubstr("the student's has ended"), HasSubstr("\"a\"")));
}

} // namespace
} // namespace distill::data
