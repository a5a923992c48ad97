#include "data/shard.h"

#include <gmock/gmock.h>

#include "data/inspect.h"
#include "tests/data/fixtures.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using testing::distinct_documents;
using ::testing::HasSubstr;
using testing::spec;

using ShardTest = testing::FolderTest;

std::vector<uint8_t> small_shard(bool loss_mask, uint64_t vocab_size = 100, bool named = false) {
  ShardWriter writer(spec(vocab_size, loss_mask));
  for (const auto& document : distinct_documents({3, 1, 7})) {
    std::vector<uint8_t> mask(loss_mask ? document.size() : 0);
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = i % 2;
    }
    EXPECT_TRUE(writer.add(document, mask, {}, named && document.size() > 1 ? "math" : "").ok());
  }
  return writer.bytes();
}

TEST_F(ShardTest, ReadsWhatWasWritten) {
  for (const uint64_t vocab_size : {uint64_t{65536}, uint64_t{65537}, uint64_t{1} << 32}) {
    for (const bool loss_mask : {false, true}) {
      const uint32_t large = static_cast<uint32_t>(vocab_size - 1);
      ShardWriter writer(spec(vocab_size, loss_mask));
      const std::vector<uint8_t> mask = {0, 1, 1, 0, 0, 0, 1, 1, 1};
      ASSERT_TRUE(writer.add({5, large}, absl::MakeConstSpan(mask).subspan(0, loss_mask ? 2 : 0)).ok());
      ASSERT_TRUE(writer.add({1, 2, 3, 4, 5, 6, 7}, absl::MakeConstSpan(mask).subspan(2, loss_mask ? 7 : 0)).ok());
      ASSERT_TRUE(writer.write(path("a.dtok")).ok());
      const auto shard = Shard::open(path("a.dtok")).value();
      EXPECT_EQ(shard.header().token_bytes, vocab_size <= 65536 ? 2U : 4U);
      EXPECT_EQ(shard.documents(), 2);
      EXPECT_EQ(shard.document_begin(1), 2);
      EXPECT_EQ(shard.document_length(1), 7);
      std::vector<int64_t> tokens(9);
      ASSERT_TRUE(shard.read_tokens(0, absl::MakeSpan(tokens)).ok());
      EXPECT_EQ(tokens, (std::vector<int64_t>{5, large, 1, 2, 3, 4, 5, 6, 7}));
      for (int64_t i = 0; i < 9; ++i) {
        EXPECT_EQ(shard.in_loss(i), !loss_mask || mask[i] == 1) << i;
      }
      EXPECT_TRUE(shard.verify().ok());
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "a temporary file was left";
}

TEST_F(ShardTest, RefusesDocumentsThatCannotBeStored) {
  ShardWriter writer(spec(10, true));
  EXPECT_THAT(std::string(writer.add({}, {}).message()), HasSubstr("document 0 is empty"));
  EXPECT_THAT(std::string(writer.add({10}, {1}).message()), HasSubstr("expected ids below 10, found 10"));
  EXPECT_THAT(std::string(writer.add({1, 2}, {1}).message()), HasSubstr("expected 2 loss mask values, found 1"));
  EXPECT_THAT(std::string(writer.write(path("a.dtok")).message()), HasSubstr("at least one document"));
  ASSERT_TRUE(writer.add({1, 2}, {1, 1}).ok());
  EXPECT_THAT(std::string(writer.write(path("no/such/folder/a.dtok")).message()), HasSubstr("cannot create"));
}

TEST_F(ShardTest, DocumentsNameTheirTeachers) {
  ShardWriter writer(spec(10));
  ASSERT_TRUE(writer.add({1}, {}, {}, "math").ok());
  ASSERT_TRUE(writer.add({2}).ok());
  ASSERT_TRUE(writer.add({3}, {}, {}, "b.C-2").ok());
  ASSERT_TRUE(writer.add({4}, {}, {}, "math").ok());
  EXPECT_THAT(std::string(writer.add({5}, {}, {}, "a b").message()), HasSubstr("letters, digits and _.-"));
  ASSERT_TRUE(writer.write(path("a.dtok")).ok());
  const auto shard = Shard::open(path("a.dtok")).value();
  EXPECT_EQ(shard.header().version, kNamedShardVersion);
  EXPECT_EQ(shard.teacher_names(), (std::vector<std::string>{"math", "b.C-2"}));
  const auto name = [&](int64_t document) {
    const std::string* found = shard.teacher_of(document);
    return found == nullptr ? "none" : *found;
  };
  EXPECT_EQ(
      (std::vector{name(0), name(1), name(2), name(3)}), (std::vector<std::string>{"math", "none", "b.C-2", "math"}));
  EXPECT_TRUE(shard.verify().ok());
  const std::string text = *describe_shard(path("a.dtok"));
  EXPECT_THAT(text, HasSubstr("teachers named   none of 1 documents, b.C-2 of 1 documents, math of 2 documents\n"));
  EXPECT_THAT(text, HasSubstr("document 0 (1 tokens, teacher math): 1\ndocument 1 (1 tokens): 2\n"));
}

// Names are not trusted because the hashes fit.
TEST_F(ShardTest, BadNamesOfTeachersAreNamed) {
  ShardWriter writer(spec(10));
  ASSERT_TRUE(writer.add({1, 2}, {}, {}, "a").ok());
  ASSERT_TRUE(writer.add({3}, {}, {}, "b").ok());
  const std::vector<uint8_t> bytes = writer.bytes();
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const ShardLayout layout = shard_layout(header);
  const auto changed = [&](uint64_t at, uint8_t value) {
    std::vector<uint8_t> copy = bytes;
    copy[at] = value;
    sign_shard(absl::MakeSpan(copy));
    const auto shard = Shard::open(write("bad.dtok", copy));
    return shard.ok() ? "" : std::string(shard.status().message());
  };
  EXPECT_EQ(changed(layout.named_at, 2), "");
  EXPECT_THAT(changed(layout.named_at + 1, 3), HasSubstr("document 1: expected the number of one of 2 teachers, or 0"));
  EXPECT_THAT(changed(layout.named_at + 2, 1), HasSubstr("padding before the names of teachers"));
  EXPECT_THAT(changed(layout.names_at, 'b'), HasSubstr("expected 1 to 255 different ones"));
  EXPECT_THAT(changed(layout.names_at, '\n'), HasSubstr("expected 1 to 255 different ones"));
}

// Whatever the file's end: an error, never a crash or a short read.
TEST_F(ShardTest, EveryTruncationIsAnError) {
  for (const int kind : {0, 1, 2}) {
    const std::vector<uint8_t> bytes = small_shard(/*loss_mask=*/kind == 1, 100, /*named=*/kind == 2);
    for (size_t size = 0; size < bytes.size(); ++size) {
      const auto file = write("cut.dtok", std::vector<uint8_t>(bytes.begin(), bytes.begin() + size));
      const auto shard = Shard::open(file);
      ASSERT_FALSE(shard.ok()) << size;
      EXPECT_THAT(std::string(shard.status().message()), HasSubstr(file)) << size;
    }
    std::vector<uint8_t> longer = bytes;
    longer.push_back(0);
    EXPECT_THAT(
        std::string(Shard::open(write("long.dtok", longer)).status().message()),
        HasSubstr("header field `file_bytes`"));
  }
}

// Each single flipped bit is found: the header's on opening, the payload's at the latest by verify().
TEST_F(ShardTest, EveryFlippedBitIsFound) {
  const std::vector<uint8_t> bytes = small_shard(true, 100, /*named=*/true);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<uint8_t> flipped = bytes;
    flipped[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    const auto shard = Shard::open(write("flip.dtok", flipped));
    if (bit / 8 < sizeof(ShardHeader)) {
      ASSERT_FALSE(shard.ok()) << bit;
    } else if (shard.ok()) {
      std::vector<int64_t> tokens(shard->tokens());
      (void)shard->read_tokens(0, absl::MakeSpan(tokens));
      ASSERT_FALSE(shard->verify().ok()) << bit;
    }
  }
}

// Bits flipped in files whose hashes have been made good again: fields are not trusted because a hash fits.
TEST_F(ShardTest, SignedNonsenseNeverCrashes) {
  const std::vector<uint8_t> bytes = small_shard(true, 100, /*named=*/true);
  int64_t opened = 0;
  for (size_t bit = 0; bit < (sizeof(ShardHeader) + 64) * 8; ++bit) {
    std::vector<uint8_t> flipped = bytes;
    flipped[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    sign_shard(absl::MakeSpan(flipped));
    const auto shard = Shard::open(write("flip.dtok", flipped));
    if (shard.ok()) {
      ++opened;
      std::vector<int64_t> tokens(shard->tokens());
      (void)shard->read_tokens(0, absl::MakeSpan(tokens));
      (void)describe_shard(shard->path());
    }
  }
  EXPECT_GT(opened, 0); // other hashes, other bos and eos ids are fine
}

struct BadShard {
  const char* name;
  std::function<void(ShardHeader&, std::vector<uint8_t>&)> damage;
  std::vector<const char*> message;
};

std::vector<BadShard> bad_shards() {
  const auto put_offset = [](std::vector<uint8_t>& bytes, int64_t index, uint64_t value) {
    std::memcpy(bytes.data() + sizeof(ShardHeader) + index * 8, &value, 8);
  };
  return {
      {"version",
       [](ShardHeader& h, auto&) { h.version = 9; },
       {"`version`: expected 1 to 4, found 9", "tokenise again"}},
      {"header_bytes",
       [](ShardHeader& h, auto&) { h.header_bytes = 255; },
       {"`header_bytes`: expected 256, found 255"}},
      {"token_bytes", [](ShardHeader& h, auto&) { h.token_bytes = 3; }, {"`token_bytes`: expected 2 or 4, found 3"}},
      {"flags", [](ShardHeader& h, auto&) { h.flags = 6; }, {"`flags`", "found 6"}},
      {"teacher stream in version 1",
       [](ShardHeader& h, auto&) { h.flags = 3; },
       {"`flags`: expected 0 or 1 (loss mask) in version 1, found 3"}},
      {"teacher tokens in version 1",
       [](ShardHeader& h, auto&) { h.teacher_token_count = 5; },
       {"`teacher_token_count`: expected 0 without a teacher stream, found 5"}},
      {"version 2 without a teacher stream",
       [](ShardHeader& h, auto&) { h.version = 2; },
       {"`flags`: expected 3", "found 1", "`teacher_token_count`: expected 1 to 2^40, found 0"}},
      {"no tokens", [](ShardHeader& h, auto&) { h.token_count = 0; }, {"`token_count`: expected 1 to 2^40, found 0"}},
      {"too many tokens",
       [](ShardHeader& h, auto&) { h.token_count = UINT64_MAX / 2 + 1; },
       {"`token_count`", "found 9223372036854775808"}},
      {"more tokens than bytes",
       [](ShardHeader& h, auto&) { h.token_count += 64; },
       {"`file_bytes`", "for 75 tokens and 3 documents"}},
      {"no documents",
       [](ShardHeader& h, auto&) { h.document_count = 0; },
       {"`document_count`: expected 1 to 11, found 0"}},
      {"more documents than tokens",
       [](ShardHeader& h, auto&) { h.document_count = UINT64_MAX; },
       {"`document_count`: expected 1 to 11, found 18446744073709551615"}},
      {"vocab_size 0", [](ShardHeader& h, auto&) { h.vocab_size = 0; }, {"`vocab_size`: expected 1 to 2^32, found 0"}},
      {"vocab_size of uint16",
       [](ShardHeader& h, auto&) { h.vocab_size = 65537; },
       {"`vocab_size`: expected at most 65536 with tokens of 2 bytes, found 65537"}},
      {"bos_id", [](ShardHeader& h, auto&) { h.bos_id = 100; }, {"`bos_id`", "below vocab_size 100, found 100"}},
      {"eos_id", [](ShardHeader& h, auto&) { h.eos_id = -2; }, {"`eos_id`", "found -2"}},
      {"reserved", [](ShardHeader& h, auto&) { h.reserved[31] = 1; }, {"`reserved`: expected zeros"}},
      {"teacher_vocab_size without its flag",
       [](ShardHeader& h, auto&) { h.teacher_vocab_size = 9; },
       {"`teacher_vocab_size`: expected 0 without a teacher's tokenizer, found 9"}},
      {"version 4 without a teacher's tokenizer",
       [](ShardHeader& h, auto&) { h.version = kTokenizerShardVersion; },
       {"`flags`: expected 11 or 15"}},
      {"file_bytes", [](ShardHeader& h, auto&) { h.file_bytes = 12; }, {"`file_bytes`", "found 12"}},
      {"several fields",
       [](ShardHeader& h, auto&) { h.token_bytes = 8, h.vocab_size = 0; },
       {"`token_bytes`", "`vocab_size`"}},
      {"first offset",
       [=](ShardHeader&, auto& bytes) { put_offset(bytes, 0, 1); },
       {"document offset 0: expected 0, found 1"}},
      {"empty document",
       [=](ShardHeader&, auto& bytes) { put_offset(bytes, 2, 3); },
       {"document offset 2: expected more than 3", "at most 11", "found 3"}},
      {"offset beyond the tokens",
       [=](ShardHeader&, auto& bytes) { put_offset(bytes, 1, uint64_t{1} << 63); },
       {"document offset 1: expected more than 0", "found 9223372036854775808"}},
      {"last offset",
       [=](ShardHeader&, auto& bytes) { put_offset(bytes, 3, 10); },
       {"last document offset: expected 11 (token_count), found 10"}},
      {"padding", [](ShardHeader&, auto& bytes) { bytes[256 + 4 * 8] = 1; }, {"padding before the tokens"}},
      {"mask bits past the end",
       [](ShardHeader&, auto& bytes) { bytes.back() |= 8; },
       {"padding around the loss mask"}},
  };
}

TEST_F(ShardTest, BadFieldsAreNamedWithExpectedAndFound) {
  for (const BadShard& bad : bad_shards()) {
    SCOPED_TRACE(bad.name);
    std::vector<uint8_t> bytes = small_shard(true);
    ShardHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    bad.damage(header, bytes);
    std::memcpy(bytes.data(), &header, sizeof(header));
    sign_shard(absl::MakeSpan(bytes));
    const auto file = write("bad.dtok", bytes);
    const auto shard = Shard::open(file);
    ASSERT_FALSE(shard.ok());
    EXPECT_THAT(std::string(shard.status().message()), HasSubstr(file));
    for (const char* part : bad.message) {
      EXPECT_THAT(std::string(shard.status().message()), HasSubstr(part));
    }
  }
}

TEST_F(ShardTest, OtherFilesAreNotShards) {
  EXPECT_THAT(
      std::string(Shard::open(write("a.txt", std::string(300, 'x'))).status().message()),
      AllOf(HasSubstr("not a token shard"), HasSubstr("\"xxxxxxxx\""), HasSubstr("scripts/tokenize.py")));
  EXPECT_THAT(std::string(Shard::open(write("empty", std::string())).status().message()), HasSubstr("empty"));
  EXPECT_THAT(std::string(Shard::open(folder_.string()).status().message()), HasSubstr("not a regular file"));
  EXPECT_EQ(Shard::open(path("missing")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(open_shards(folder_.string()).status().message()),
      HasSubstr("expected token shards (*.dtok), found none"));
  EXPECT_FALSE(is_token_data(folder_.string()));
  EXPECT_FALSE(is_token_data(path("a.txt")));
}

TEST_F(ShardTest, AFolderReportsAllItsBadShards) {
  write("a.dtok", small_shard(false));
  write("b.dtok", std::string("short"));
  ShardSpec other = spec(101);
  other.tokenizer_hash.fill(8);
  testing::write_shard(path("c.dtok"), other, distinct_documents({4}));
  const std::string message(open_shards(folder_.string()).status().message());
  EXPECT_THAT(
      message, AllOf(HasSubstr("b.dtok: not a token shard"), HasSubstr("c.dtok: header field `tokenizer_hash`")));
  EXPECT_THAT(message, HasSubstr("c.dtok: header field `vocab_size`: expected 100"));
}

TEST_F(ShardTest, AnIdThatIsTooLargeIsFoundWhenItIsRead) {
  std::vector<uint8_t> bytes = small_shard(false);
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const uint16_t id = 100;
  std::memcpy(bytes.data() + shard_layout(header).tokens_at + 2 * 6, &id, sizeof(id));
  sign_shard(absl::MakeSpan(bytes));
  const auto shard = Shard::open(write("id.dtok", bytes)).value();
  std::vector<int64_t> tokens(6);
  EXPECT_TRUE(shard.read_tokens(0, absl::MakeSpan(tokens)).ok());
  const absl::Status status = shard.read_tokens(2, absl::MakeSpan(tokens));
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("document 2, token 2: expected an id below 100 (vocab_size), found 100"));
  EXPECT_EQ(shard.verify(), status);
}

TEST_F(ShardTest, InspectShowsHeaderStatisticsAndFirstTokens) {
  const auto file = write("a.dtok", small_shard(true));
  const auto text = describe_shard(file).value();
  EXPECT_THAT(text, AllOf(HasSubstr("uint16"), HasSubstr("vocab size       100"), HasSubstr("none / 0")));
  EXPECT_THAT(text, HasSubstr("teacher stream   no"));
  EXPECT_THAT(text, AllOf(HasSubstr("documents        3"), HasSubstr("mean 3.7, min 1, median 3, p90 3, max 7")));
  EXPECT_THAT(text, HasSubstr("tokens in loss   4 (36.36 %)"));
  EXPECT_THAT(text, HasSubstr("document 0 (3 tokens): [1] 2 [3]\n"));
  EXPECT_THAT(text, HasSubstr("tokenizer hash   0707"));
  write("b.dtok", small_shard(true));
  const auto folder = describe_data(folder_.string(), 1).value();
  EXPECT_THAT(
      folder,
      AllOf(HasSubstr("(2 files)"), HasSubstr("b.dtok: 3 documents, 11 tokens"), HasSubstr("tokens           22")));
  EXPECT_TRUE(is_token_data(folder_.string()) && is_token_data(file));
}

TEST_F(ShardTest, ReadsTheShardsThatTokenizePyWrites) {
  const auto shards = open_shards(DISTILL_GOLDEN).value();
  ASSERT_EQ(shards.size(), 1U);
  const Shard& shard = shards[0];
  EXPECT_TRUE(shard.verify().ok());
  EXPECT_TRUE(shard.has_loss_mask());
  EXPECT_EQ(shard.documents(), 3);
}

} // namespace
} // namespace distill::data
