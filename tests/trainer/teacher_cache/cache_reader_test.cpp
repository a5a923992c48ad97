#include "trainer/teacher_cache/cache_reader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/trainer/teacher_cache/cache_fixture.h"
#include "trainer/teacher_cache/contexts.h"

namespace distill::teacher_cache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CacheReaderTest : public CacheTest {
 protected:
  absl::StatusOr<std::shared_ptr<CacheReader>> open(RowsOptions options = {}) {
    options.data_key = "data.train";
    auto index = Index::open(folder_.string(), options.partial);
    return index.ok() ? CacheReader::open(*index, *data_, options) : index.status();
  }

  // Every token with a target has the row of its own id.
  void expect_own_rows(int64_t samples, int64_t count) {
    int64_t tokens = 0;
    for (int64_t first = 0; first < samples; first += count) {
      const data::Batch batch = data::testing::get(*data_, first, count);
      ASSERT_TRUE(batch.teacher_rows_NW.defined());
      const at::Tensor rows_N2 = decode(manifest_.rows, batch.teacher_rows_NW, at::kFloat);
      const at::Tensor counts = batch.targets_BS.flatten().ne(-100);
      const at::Tensor ids = batch.tokens_BS.flatten().masked_select(counts).to(at::kFloat);
      tokens += ids.numel();
      EXPECT_TRUE(at::equal(rows_N2.select(1, 0).masked_select(counts), ids)) << first;
      EXPECT_TRUE(rows_N2.select(1, 1).masked_select(counts).eq(0.5).all().item<bool>());
    }
    EXPECT_GT(tokens, 0);
  }
};

const std::vector<int64_t> kLengths = {5, 20, 1, 9, 8, 3, 17, 2, 2, 6};

TEST_F(CacheReaderTest, EveryTokenFindsItsRowInAnyOrderAndBatch) {
  for (const auto& [shuffle, count] : {std::pair(false, 1), std::pair(true, 3), std::pair(true, 1)}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    open_data(kLengths, {.shuffle = shuffle, .seed = 5});
    write_cache(8);
    const auto rows = open().value();
    data_->read_teacher_rows(rows);
    expect_own_rows(3 * data_->num_samples(), count); // over three epochs
    const CacheReader::Reading reading = rows->take_reading();
    EXPECT_GE(reading.bytes, 3 * 8 * 60); // 63 tokens with a target, 3 epochs
    EXPECT_GT(reading.seconds, 0);
    EXPECT_EQ(rows->take_reading().bytes, 0);
  }
}

TEST_F(CacheReaderTest, ALongerSequenceUsesTheRowsOfDocumentsThatWereNotCut) {
  open_data({5, 7, 3, 8}, {.seq_len = 16});
  write_cache(8);
  const auto rows = open().value();
  data_->read_teacher_rows(rows);
  expect_own_rows(data_->num_samples(), 1);
}

TEST_F(CacheReaderTest, AShorterStretchUsesTheFirstRowsOfALongerOne) {
  open_data({5, 7, 3, 8});
  write_cache(100);
  ASSERT_TRUE(open().ok());
  data_ = nullptr;
  open_data({5, 7, 3, 8}, {.seq_len = 6}); // 7 and 8 are cut after 6: the second parts lack their context
  const absl::Status status = open().status();
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(
          HasSubstr("data.train: "), HasSubstr("document 1 is cut at other places than in the cache"),
          HasSubstr("expected 1 tokens from token 6 on"), HasSubstr("(data.seq_len 6), found 7 from token 0 on"),
          HasSubstr("captured with data.seq_len 8"), HasSubstr("the same with 1 more of 6 stretches")));
}

TEST_F(CacheReaderTest, OtherContextsAreUsedWhereThatIsAllowed) {
  for (const auto& [captured, length] : {std::pair(8, 6), std::pair(6, 8), std::pair(5, 16)}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    open_data(kLengths, {.seq_len = length});
    write_cache(captured);
    EXPECT_TRUE(absl::IsInvalidArgument(open().status()));
    const auto rows = open({.other_contexts = true}).value();
    data_->read_teacher_rows(rows);
    expect_own_rows(data_->num_samples(), 1);
  }
}

TEST_F(CacheReaderTest, WhatIsMissingIsAnErrorOrNoRows) {
  open_data(kLengths);
  write_cache(8);
  std::filesystem::remove(part_path(folder_.string(), 1));
  const absl::Status status = open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not complete: expected parts 0 to 4, found 4 of them"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("without part 1"));
  const auto rows = open({.partial = true}).value();
  data_->read_teacher_rows(rows);
  int64_t with = 0;
  for (int64_t sample = 0; sample < data_->num_samples(); ++sample) {
    with += data::testing::get(*data_, sample, 1).teacher_rows_NW.defined() ? 1 : 0;
  }
  EXPECT_GT(with, 0);
  EXPECT_LT(with, data_->num_samples());
}

TEST_F(CacheReaderTest, ChangedAndForeignDataAreNamedWithBothHashes) {
  open_data(kLengths);
  write_cache(8);
  const std::string before = base::hex(manifest_.data[0].header_hash);
  std::vector<int64_t> other = kLengths;
  other[0] = 6;
  open_data(other);
  const std::string message(open().status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("train.dtok: its header_hash is "), HasSubstr(before)));
  EXPECT_THAT(message, HasSubstr("the data changed after the capture"));
  EXPECT_THAT(message, HasSubstr(base::hex(manifest_.data[0].header_hash)));
}

// The rows of the stream's sequences, as a capture writes them.
class ConcatRowsTest : public CacheReaderTest {
 protected:
  void write_stream() {
    manifest_.packing = data::PackingMode::kConcat;
    manifest_.shuffle = data_->options().shuffle;
    manifest_.data_seed = data_->options().seed;
    manifest_.parts = 1;
    ASSERT_TRUE(begin_cache(folder_.string(), manifest_).ok());
    auto writer = PartWriter::create(part_path(folder_.string(), 0), manifest_.id(), 0, 8, kContextVersion);
    for (int64_t sample = 0; sample < data_->num_samples(); ++sample) {
      const data::Batch batch = data::testing::get(*data_, sample, 1);
      const std::vector<uint64_t> contexts = contexts_of(batch);
      const int64_t* ids = batch.tokens_BS.const_data_ptr<int64_t>();
      for (size_t i = 0; i < contexts.size(); ++i) {
        const data::Stretch& stretch = batch.stretches[i];
        StretchEntry entry{};
        entry.document = static_cast<uint32_t>(stretch.document);
        entry.begin = static_cast<uint64_t>(stretch.begin);
        entry.tokens = static_cast<uint32_t>(stretch.tokens);
        entry.context = contexts[i];
        std::vector<float> rows;
        for (int64_t at = stretch.at; at < stretch.at + stretch.tokens; ++at) {
          rows.insert(rows.end(), {static_cast<float>(ids[at]), 0.5F});
        }
        ASSERT_TRUE(
            writer->append(entry, {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)}).ok());
      }
    }
    ASSERT_TRUE(writer->finish().ok());
  }
  void open_stream(int64_t seed, bool shuffle = true, int64_t seq_len = 8) {
    open_data(kLengths, {.seq_len = seq_len, .packing = data::PackingMode::kConcat, .shuffle = shuffle, .seed = seed});
  }
};

TEST_F(ConcatRowsTest, EveryTokenOfTheSameStreamFindsItsRow) {
  for (const bool shuffle : {false, true}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    open_stream(5, shuffle);
    write_stream();
    const auto rows = open().value();
    data_->read_teacher_rows(rows);
    expect_own_rows(3 * data_->num_samples(), 3); // three epochs, in other orders of the same sequences
  }
}

TEST_F(ConcatRowsTest, AnotherStreamIsRefused) {
  open_stream(5);
  write_stream();
  for (const auto& [seed, shuffle, length] :
       {std::tuple(6, true, 8), std::tuple(5, false, 8), std::tuple(5, true, 6)}) {
    open_stream(seed, shuffle, length);
    for (const bool other_contexts : {false, true}) {
      const absl::Status status = open({.other_contexts = other_contexts}).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr("has the same tokens to the left of token"), HasSubstr("data.seq_len 8 and data.seed 5")));
    }
  }
  open_data(kLengths);
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("data.packing: expected concat, with which the cache"));
}

TEST_F(ConcatRowsTest, ACacheOfWholeDocumentsIsRefused) {
  open_stream(5);
  write_cache(8);
  EXPECT_THAT(std::string(open().status().message()), HasSubstr("data.packing: expected pack, with which the cache"));
}

TEST_F(ConcatRowsTest, AContextIsAllThatIsToTheLeft) {
  open_stream(5, /*shuffle=*/false);
  const data::Batch batch = data::testing::get(*data_, 0, 3); // 5 + 3, 8, 8 + 1 ... of {5, 20, 1, 9, ...}
  const std::vector<uint64_t> contexts = contexts_of(batch);
  ASSERT_GE(contexts.size(), 4);
  EXPECT_EQ(contexts[0], kSequenceStart);
  EXPECT_EQ(contexts[1], context_after(kSequenceStart, batch.stretches[0]));
  EXPECT_EQ(contexts[2], kSequenceStart);
  data::Stretch other = batch.stretches[0];
  other.tokens -= 1;
  EXPECT_NE(contexts[1], context_after(kSequenceStart, other));
  EXPECT_NE(contexts[1], context_after(kSequenceStart + 1, batch.stretches[0]));
}

TEST_F(CacheReaderTest, ADamagedRowIsFoundWhenItIsRead) {
  open_data(kLengths);
  write_cache(8);
  const std::string file = part_path(folder_.string(), 0);
  std::string bytes = read_file(file);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  write("part-00000000.dtc", bytes);
  const auto rows = open().value();
  data_->read_teacher_rows(rows);
  absl::Status status;
  for (int64_t sample = 0; sample < data_->num_samples() && status.ok(); ++sample) {
    status = data_->batch(sample, 1).status();
  }
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(file), HasSubstr("are damaged: expected checksum ")));
}

TEST_F(CacheReaderTest, APartOfAnotherCacheIsRefused) {
  open_data(kLengths);
  write_cache(8);
  manifest_.seq_len = 9;
  write_part(0, {});
  manifest_.seq_len = 8;
  const absl::Status status = open().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(
      std::string(status.message()), HasSubstr("part-00000000.dtc: is a part of another cache: expected part 0"));
}

// Read as an int64, the first of these numbers is -5, which is before the document.
TEST_F(CacheReaderTest, StretchesOutsideOfTheirShardAreRefused) {
  open_data(kLengths);
  for (const auto& [begin, tokens] : std::vector<std::pair<uint64_t, uint32_t>>{
           {std::numeric_limits<uint64_t>::max() - 4, 20}, {70, 4}, {74, 1}, {0, 74}}) {
    write_cache(8);
    StretchEntry entry{};
    entry.begin = begin;
    entry.tokens = tokens;
    auto writer = PartWriter::create(part_path(folder_.string(), 0), manifest_.id(), 0, manifest_.rows.row_bytes());
    ASSERT_TRUE(writer.ok() && writer->append(entry, "").ok() && writer->finish().ok());
    const absl::Status status = open({.partial = true, .other_contexts = true}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(
            HasSubstr("part-00000000.dtc: document 0 of shard 0: expected tokens of the shard's 73, found "),
            HasSubstr(absl::StrCat(tokens, " tokens from ", begin, " on"))));
  }
}

TEST_F(CacheReaderTest, AFolderThatIsNoCacheIsSaidToBeNone) {
  open_data(kLengths);
  EXPECT_TRUE(absl::IsNotFound(open().status()));
  ASSERT_TRUE(begin_cache(folder_.string(), manifest_).ok());
  EXPECT_TRUE(begin_cache(folder_.string(), manifest_).ok());
  manifest_.precision = "bfloat16";
  EXPECT_THAT(
      std::string(begin_cache(folder_.string(), manifest_).message()),
      HasSubstr("precision: expected \"bfloat16\", found \"float32\""));
}

} // namespace
} // namespace distill::teacher_cache
