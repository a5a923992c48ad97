#include "data/teacher_text.h"

#include <gmock/gmock.h>

#include "data/inspect.h"
#include "tests/data/fixtures.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::spec;

using TeacherTextTest = testing::FolderTest;
using Ids = std::vector<uint32_t>;
using Marks = std::vector<uint8_t>;

struct Document {
  Ids tokens;
  Marks in_loss;
  Ids teacher;
  Marks in_completion;
};

std::vector<uint8_t> shard_of(const std::vector<Document>& documents, uint64_t vocab_size = 100) {
  ShardWriter writer(spec(vocab_size, /*loss_mask=*/true));
  for (const Document& document : documents) {
    const absl::Status status =
        writer.add(document.tokens, document.in_loss, {document.teacher, document.in_completion});
    EXPECT_TRUE(status.ok()) << status;
  }
  return writer.bytes();
}

const std::vector<Document> kDocuments = {
    {{1, 5, 6, 7, 2}, {0, 0, 1, 1, 1}, {1, 50, 51, 52, 6, 7, 2}, {0, 0, 0, 0, 1, 1, 1}},
    {{10, 11, 12}, {1, 1, 1}, {}, {}},
    {{20, 21, 22, 23}, {1, 0, 0, 1}, {60, 20, 61, 23, 62}, {0, 1, 0, 1, 0}},
};

Shard opened(const std::string& path) {
  auto shard = Shard::open(path);
  TORCH_CHECK(shard.ok(), shard.status().ToString());
  return *std::move(shard);
}

// Changes one id of the teacher's tokens and makes the hashes good again.
std::vector<uint8_t> with_teacher_id(std::vector<uint8_t> bytes, int64_t token, uint16_t id) {
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(bytes.data() + shard_layout(header).teacher_tokens_at + 2 * token, &id, sizeof(id));
  sign_shard(absl::MakeSpan(bytes));
  return bytes;
}

TEST_F(TeacherTextTest, ReadsWhatWasWritten) {
  for (const uint64_t vocab_size : {uint64_t{100}, uint64_t{1} << 20}) {
    const Shard shard = opened(write("a.dtok", shard_of(kDocuments, vocab_size)));
    EXPECT_EQ(shard.header().version, 2U);
    EXPECT_EQ(shard.teacher_tokens(), 12);
    EXPECT_TRUE(shard.verify().ok()) << shard.verify();
    for (int64_t i = 0; i < 3; ++i) {
      const Document& expected = kDocuments[i];
      ASSERT_EQ(shard.teacher_length(i), static_cast<int64_t>(expected.teacher.size()));
      std::vector<int64_t> ids(expected.teacher.size());
      ASSERT_TRUE(shard.read_teacher_tokens(shard.teacher_begin(i), absl::MakeSpan(ids)).ok());
      EXPECT_EQ(Ids(ids.begin(), ids.end()), expected.teacher);
      for (size_t j = 0; j < ids.size(); ++j) {
        EXPECT_EQ(
            shard.in_teacher_completion(shard.teacher_begin(i) + static_cast<int64_t>(j)),
            expected.in_completion[j] != 0);
      }
    }
  }
}

TEST_F(TeacherTextTest, AFileWithoutTeacherTextsIsOfVersion1) {
  ShardWriter writer(spec(100, true)), empty_texts(spec(100, true));
  ASSERT_TRUE(writer.add({1, 2}, {0, 1}).ok());
  ASSERT_TRUE(empty_texts.add({1, 2}, {0, 1}, {Ids{}, Marks{}}).ok());
  EXPECT_EQ(writer.bytes(), empty_texts.bytes());
  EXPECT_EQ(opened(write("a.dtok", writer.bytes())).header().version, 1U);
}

TEST_F(TeacherTextTest, ReadsTheFileThatPythonWrites) {
  const auto shards = open_shards(DISTILL_GOLDEN "/teacher_stream").value();
  const Shard& shard = shards.front();
  EXPECT_TRUE(shard.verify().ok()) << shard.verify();
  for (int64_t i = 0; i < 3; ++i) { // the same documents as in tests/data/test_shard_file.py
    TeacherText texts;
    const TextLengths lengths{shard.document_length(i), shard.teacher_length(i)};
    ASSERT_EQ(lengths.teacher_tokens, static_cast<int64_t>(kDocuments[i].teacher.size()));
    ASSERT_TRUE(lengths.teacher_tokens == 0 || read_texts(shard, i, lengths, texts).ok());
    if (lengths.teacher_tokens > 0) {
      EXPECT_EQ(Ids(texts.tokens.begin(), texts.tokens.end()), kDocuments[i].tokens);
      EXPECT_EQ(Ids(texts.teacher_tokens.begin(), texts.teacher_tokens.end()), kDocuments[i].teacher);
    }
  }
  EXPECT_TRUE(has_teacher_stream(DISTILL_GOLDEN "/teacher_stream"));
  EXPECT_FALSE(has_teacher_stream(DISTILL_GOLDEN));
  EXPECT_FALSE(has_teacher_stream("/no/such/folder"));
}

TEST_F(TeacherTextTest, TheWriterRefusesACompletionThatDiffers) {
  ShardWriter writer(spec(100, true)), no_mask(spec(100));
  const Marks own = {0, 1, 1};
  const auto add = [&](const Ids& teacher, const Marks& marks) {
    return std::string(writer.add({1, 2, 3}, own, {teacher, marks}).message());
  };
  EXPECT_THAT(add({9, 2, 4}, {0, 1, 1}), HasSubstr("document 0: the completion in the teacher's text differs"));
  EXPECT_THAT(add({9, 2, 3}, {0, 1, 0}), HasSubstr("differs"));
  EXPECT_THAT(add({9, 2, 3}, {0, 1}), HasSubstr("expected 3 teacher mask values, found 2"));
  EXPECT_THAT(add({100, 2, 3}, {0, 1, 1}), HasSubstr("expected ids below 100, found 100"));
  EXPECT_THAT(
      std::string(no_mask.add({1, 2}, {}, {Ids{1, 2}, Marks{1, 1}}).message()), HasSubstr("needs a shard with a loss"));
}

TEST_F(TeacherTextTest, EveryTruncationAndEveryFlippedBitIsFound) {
  const std::vector<uint8_t> bytes = shard_of(kDocuments);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));
    ASSERT_FALSE(Shard::open(write("cut.dtok", cut)).ok()) << size;
  }
  int64_t opened_signed = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::vector<uint8_t> flipped = bytes;
    flipped[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    const auto shard = Shard::open(write("flip.dtok", flipped));
    ASSERT_FALSE(shard.ok() && shard->verify().ok()) << bit;
    // With good hashes it may be another good file; whatever it is, nothing is read outside of it.
    sign_shard(absl::MakeSpan(flipped));
    const auto other = Shard::open(write("signed.dtok", flipped));
    if (other.ok()) {
      ++opened_signed;
      (void)describe_shard(other->path());
      for (int64_t i = 0; i < other->documents(); ++i) {
        TeacherText texts;
        (void)read_texts(*other, i, fit_texts(*other, i, 4, 4), texts);
      }
    }
  }
  EXPECT_GT(opened_signed, 100);
}

TEST_F(TeacherTextTest, BadSectionsAreNamedWithExpectedAndFound) {
  struct Bad {
    const char* name;
    std::function<void(const ShardLayout&, std::vector<uint8_t>&)> damage;
    const char* message;
  };
  const auto put = [](std::vector<uint8_t>& bytes, uint64_t at, uint64_t value) {
    std::memcpy(bytes.data() + at, &value, 8);
  };
  const std::vector<Bad> all = {
      {"first offset", [&](auto& at, auto& bytes) { put(bytes, at.teacher_offsets_at, 1); },
       "teacher document offset 0: expected 0, found 1"},
      {"offsets that decrease", [&](auto& at, auto& bytes) { put(bytes, at.teacher_offsets_at + 16, 6); },
       "teacher document offset 2: expected at least 7 and at most 12 (teacher_token_count), found 6"},
      {"last offset", [&](auto& at, auto& bytes) { put(bytes, at.teacher_offsets_at + 24, 11); },
       "last teacher document offset: expected 12 (teacher_token_count), found 11"},
      {"padding", [](auto& at, auto& bytes) { bytes[at.teacher_tokens_at - 1] = 1; },
       "padding before the teacher tokens: expected zeros"},
      {"padding before the mask", [](auto& at, auto& bytes) { bytes[at.teacher_mask_at - 1] = 1; },
       "padding around the teacher mask: expected zeros"},
      {"mask bits past the end", [](auto&, auto& bytes) { bytes.back() |= 0x80; },
       "padding around the teacher mask: expected zeros"},
  };
  for (const Bad& bad : all) {
    SCOPED_TRACE(bad.name);
    std::vector<uint8_t> bytes = shard_of(kDocuments);
    ShardHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    bad.damage(shard_layout(header), bytes);
    sign_shard(absl::MakeSpan(bytes));
    const auto file = write("bad.dtok", bytes);
    EXPECT_THAT(std::string(Shard::open(file).status().message()), AllOf(HasSubstr(file), HasSubstr(bad.message)));
  }
  for (const uint32_t flags : {0U, 1U, 2U, 7U}) {
    std::vector<uint8_t> bytes = shard_of(kDocuments);
    std::memcpy(bytes.data() + offsetof(ShardHeader, flags), &flags, sizeof(flags));
    sign_shard(absl::MakeSpan(bytes));
    EXPECT_THAT(
        std::string(Shard::open(write("bad.dtok", bytes)).status().message()),
        HasSubstr(absl::StrCat("`flags`: expected 3 (loss mask and teacher stream) in version 2, found ", flags)));
  }
}

TEST_F(TeacherTextTest, DifferentCompletionsAreFoundOnReadingAndByVerify) {
  // Token 11 of the stream is the second one of document 2's completion.
  const Shard other_id = opened(write("id.dtok", with_teacher_id(shard_of(kDocuments), 10, 24)));
  TeacherText texts;
  const auto read = [&](const Shard& shard, int64_t document) {
    return std::string(
        read_texts(shard, document, {shard.document_length(document), shard.teacher_length(document)}, texts)
            .message());
  };
  const auto expected = AllOf(
      HasSubstr("id.dtok: document 2: token 1 of the completion"),
      HasSubstr("found 23 in the student's text (token 3)"), HasSubstr("24 in the teacher's (token 3)"));
  EXPECT_THAT(read(other_id, 2), expected);
  EXPECT_EQ(read(other_id, 0), "");
  EXPECT_THAT(std::string(other_id.verify().message()), expected);

  const Shard too_large = opened(write("large.dtok", with_teacher_id(shard_of(kDocuments), 8, 100)));
  const auto large = HasSubstr("document 2, teacher token 1: expected an id below 100 (vocab_size), found 100");
  EXPECT_THAT(read(too_large, 2), large);
  EXPECT_THAT(std::string(too_large.verify().message()), large);

  for (const int64_t bit : {4, 0}) { // one marked token fewer, one more
    std::vector<uint8_t> bytes = shard_of(kDocuments);
    ShardHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes[shard_layout(header).teacher_mask_at + 1] ^= static_cast<uint8_t>(bit == 0 ? 8 : 4); // tokens 11 and 10
    sign_shard(absl::MakeSpan(bytes));
    const Shard counts = opened(write("counts.dtok", bytes));
    const auto message = bit == 0
        ? HasSubstr("document 2: the completion has more than 2 tokens in the teacher's text, but 2 in the student's")
        : HasSubstr("document 2: the completion has more than 1 tokens in the student's text, but 1 in the teacher's");
    EXPECT_THAT(read(counts, 2), message);
    EXPECT_THAT(std::string(counts.verify().message()), message);
  }
}

// fit_texts against its definition, for every pair of limits.
TEST_F(TeacherTextTest, BothTextsEndWithTheSameTokenOfTheCompletion) {
  const std::vector<Document> documents = {
      {{1, 5, 6, 7, 2, 9, 9, 8}, {0, 0, 1, 1, 0, 0, 0, 1}, {1, 50, 51, 6, 52, 7, 53, 8}, {0, 0, 0, 1, 0, 1, 0, 1}},
      {{6, 7, 2}, {1, 1, 1}, {1, 2, 3, 6, 7, 2, 4}, {0, 0, 0, 1, 1, 1, 0}},
      {{1, 2, 3, 4}, {0, 0, 0, 0}, {5, 6, 7}, {0, 0, 0}},
      {{1, 6, 2}, {0, 1, 1}, {6, 2}, {1, 1}},
  };
  const Shard shard = opened(write("a.dtok", shard_of(documents)));
  for (size_t d = 0; d < documents.size(); ++d) {
    const Document& document = documents[d];
    const auto places = [](const Marks& marks) {
      std::vector<int64_t> at;
      for (size_t i = 0; i < marks.size(); ++i) {
        if (marks[i] != 0) {
          at.push_back(static_cast<int64_t>(i));
        }
      }
      return at;
    };
    const std::vector<int64_t> own = places(document.in_loss), its = places(document.in_completion);
    const auto length = static_cast<int64_t>(document.tokens.size());
    const auto teacher_length = static_cast<int64_t>(document.teacher.size());
    for (int64_t limit = 2; limit <= 10; ++limit) {
      for (int64_t teacher_limit = 2; teacher_limit <= 10; ++teacher_limit) {
        SCOPED_TRACE(absl::StrCat("document ", d, ", limits ", limit, " and ", teacher_limit));
        const TextLengths found = fit_texts(shard, static_cast<int64_t>(d), limit, teacher_limit);
        if (length <= limit && teacher_length <= teacher_limit) {
          EXPECT_EQ(
              std::tuple(found.tokens, found.teacher_tokens, found.cut), std::tuple(length, teacher_length, false));
          continue;
        }
        size_t kept = 0, targets = 0;
        for (; kept < own.size() && own[kept] < limit && its[kept] < teacher_limit; ++kept) {
          targets += own[kept] > 0 && its[kept] > 0 ? 1 : 0;
        }
        EXPECT_TRUE(found.cut);
        EXPECT_EQ(found.tokens, targets == 0 ? 0 : own[kept - 1] + 1);
        EXPECT_EQ(found.teacher_tokens, targets == 0 ? 0 : its[kept - 1] + 1);
        TeacherText texts;
        if (targets > 0) {
          ASSERT_TRUE(read_texts(shard, static_cast<int64_t>(d), found, texts).ok());
          EXPECT_EQ(texts.completion.size(), kept);
        }
      }
    }
  }
}

TEST_F(TeacherTextTest, InspectShowsTheTeachersTexts) {
  const auto text = describe_shard(write("a.dtok", shard_of(kDocuments))).value();
  EXPECT_THAT(text, AllOf(HasSubstr("version          2"), HasSubstr("teacher stream   yes")));
  EXPECT_THAT(text, HasSubstr("teacher texts    of 2 documents: mean 6.0, max 7 tokens; 12 tokens in all\n"));
  EXPECT_THAT(
      text,
      HasSubstr("document 0 (5 tokens): [1] [5] 6 7 2\n"
                "  the teacher reads (7 tokens): [1] [50] [51] [52] 6 7 2\n"
                "document 1 (3 tokens): 10 11 12\ndocument 2"));
}

} // namespace
} // namespace distill::data
