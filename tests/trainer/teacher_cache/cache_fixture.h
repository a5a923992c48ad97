#pragma once

#include <gtest/gtest.h>

#include "tests/data/fixtures.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/part_file.h"

namespace distill::teacher_cache {

inline Manifest tiny_manifest() {
  Manifest manifest;
  manifest.rows = {Encoding::kFloat32, 2}; // rows of 8 bytes
  manifest.vocab_size = 40;
  manifest.teacher = "models/teacher";
  manifest.teacher_shape = "llama";
  manifest.teacher_hash.fill(9);
  manifest.precision = manifest.compute_dtype = "float32";
  manifest.tokenizer_hash = "07";
  manifest.seq_len = 8;
  manifest.micro_batch_size = 2;
  manifest.part_samples = 4;
  manifest.data.push_back({"data/train.dtok", "data", false, {}, 3, 30});
  return manifest;
}

// A token shard, its data set, and a cache in which the row of a token is (its id, 0.5).
class CacheTest : public data::testing::FolderTest {
 protected:
  void open_data(const std::vector<int64_t>& lengths, data::DataOptions options = {}) {
    shard_path_ = data::testing::write_shard(
        path("train.dtok"), data::testing::spec(5000), data::testing::distinct_documents(lengths));
    options.sources = {{shard_path_, 1.0}};
    options.seq_len = options.seq_len == 2048 ? 8 : options.seq_len;
    data_ = data::testing::open(options);
    manifest_ = tiny_manifest();
    const data::Shard& shard = *data_->shards().front();
    manifest_.data = {{shard_path_, shard_path_, false, {}, shard.documents(), shard.tokens()}};
    std::copy_n(shard.header().header_hash, 32, manifest_.data[0].header_hash.begin());
  }

  // Stretches of `length` tokens of every document, in parts of three stretches.
  void write_cache(int64_t length) {
    const data::Shard& shard = *data_->shards().front();
    std::vector<StretchEntry> stretches;
    for (int64_t document = 0; document < shard.documents(); ++document) {
      for (int64_t begin = 0; begin < shard.document_length(document); begin += length) {
        StretchEntry entry{};
        entry.document = static_cast<uint32_t>(document);
        entry.begin = static_cast<uint64_t>(begin);
        entry.tokens = static_cast<uint32_t>(std::min(length, shard.document_length(document) - begin));
        stretches.push_back(entry);
      }
    }
    manifest_.parts = static_cast<int64_t>(stretches.size() + 2) / 3;
    ASSERT_TRUE(begin_cache(folder_.string(), manifest_).ok());
    for (int64_t part = 0; part < manifest_.parts; ++part) {
      const auto first = static_cast<size_t>(3 * part);
      write_part(
          part,
          {stretches.begin() + static_cast<std::ptrdiff_t>(first),
           stretches.begin() + static_cast<std::ptrdiff_t>(std::min(stretches.size(), first + 3))});
    }
  }

  void write_part(int64_t part, const std::vector<StretchEntry>& stretches) {
    auto writer =
        PartWriter::create(part_path(folder_.string(), part), manifest_.id(), part, manifest_.rows.row_bytes());
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const StretchEntry& stretch : stretches) {
      const std::vector<float> rows = rows_of(stretch);
      ASSERT_TRUE(
          writer->append(stretch, {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float)}).ok());
    }
    ASSERT_TRUE(writer->finish().ok());
  }

  // Every token of a document but its last one has a target.
  std::vector<float> rows_of(const StretchEntry& stretch) const {
    const data::Shard& shard = *data_->shards().front();
    std::vector<int64_t> ids(static_cast<size_t>(shard.document_length(stretch.document)));
    EXPECT_TRUE(shard.read_tokens(shard.document_begin(stretch.document), absl::MakeSpan(ids)).ok());
    std::vector<float> rows;
    for (uint64_t token = stretch.begin; token < stretch.begin + stretch.tokens && token + 1 < ids.size(); ++token) {
      rows.push_back(static_cast<float>(ids[token]));
      rows.push_back(0.5);
    }
    return rows;
  }

  std::string read_file(const std::string& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string shard_path_;
  std::shared_ptr<data::Dataset> data_;
  Manifest manifest_;
};

} // namespace distill::teacher_cache
