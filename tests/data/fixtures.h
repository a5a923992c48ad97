#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/shard_writer.h"

namespace distill::data::testing {

// A folder of its own for each test, removed at the end.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Thousands of small files: in memory where the system has such a folder.
    const std::filesystem::path memory = "/dev/shm";
    const auto parent = std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "distill_data_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string write(const std::string& name, const std::vector<uint8_t>& content) const {
    return write(name, std::string(content.begin(), content.end()));
  }

  std::filesystem::path folder_;
};

inline ShardSpec spec(uint64_t vocab_size, bool loss_mask = false) {
  ShardSpec out;
  out.vocab_size = vocab_size;
  out.tokenizer_hash.fill(7);
  out.bos_id = -1;
  out.eos_id = 0;
  out.loss_mask = loss_mask;
  return out;
}

// Documents whose tokens are all different over the whole set: token ids count up from `first_id`.
inline std::vector<std::vector<uint32_t>> distinct_documents(
    const std::vector<int64_t>& lengths, uint32_t first_id = 1) {
  std::vector<std::vector<uint32_t>> documents;
  for (const int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      document.push_back(first_id++);
    }
  }
  return documents;
}

inline std::string write_shard(
    const std::string& path, const ShardSpec& shard_spec, const std::vector<std::vector<uint32_t>>& documents) {
  ShardWriter writer(shard_spec);
  for (const auto& document : documents) {
    EXPECT_TRUE(writer.add(document).ok());
  }
  const absl::Status status = writer.write(path);
  EXPECT_TRUE(status.ok()) << status;
  return path;
}

// Lengths of 1 to `longest`, many of them short.
inline std::vector<int64_t> mixed_lengths(int64_t count, int64_t longest) {
  std::vector<int64_t> lengths;
  uint64_t state = 12345;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const double u = static_cast<double>(state >> 11) / 9007199254740992.0;
    lengths.push_back(1 + static_cast<int64_t>(u * u * static_cast<double>(longest - 1)));
  }
  return lengths;
}

inline Batch get(const Dataset& dataset, int64_t first, int64_t count) {
  absl::StatusOr<Batch> batch = dataset.batch(first, count);
  TORCH_CHECK(batch.ok(), batch.status().ToString());
  return *std::move(batch);
}

inline std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

inline std::unique_ptr<Dataset> open(const DataOptions& options) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = Dataset::open(options);
  TORCH_CHECK(dataset.ok(), dataset.status().ToString());
  return *std::move(dataset);
}

} // namespace distill::data::testing
