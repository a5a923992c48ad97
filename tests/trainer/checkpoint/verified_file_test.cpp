#include "trainer/checkpoint/verified_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "trainer/checkpoint/index.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class VerifiedFileTest : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "verified_file_test.bin";
  std::vector<char> content_;
  std::vector<uint64_t> sums_;

  void write(size_t size) {
    content_.resize(size);
    for (size_t i = 0; i < size; ++i) {
      content_[i] = static_cast<char>(i * 2654435761u >> 13);
    }
    BlockSums sums;
    for (size_t done = 0; done < size;) { // in uneven pieces
      const size_t count = std::min(size - done, done % 3 == 0 ? size_t{1} << 20 : size_t{5000001});
      sums.update(content_.data() + done, count);
      done += count;
    }
    sums_ = sums.finish();
    fs::remove(path_);
    std::ofstream(path_, std::ios::binary).write(content_.data(), static_cast<std::streamsize>(size));
  }
  std::unique_ptr<VerifiedFile> open() const {
    auto file = VerifiedFile::open(path_, static_cast<int64_t>(content_.size()), sums_);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
};

TEST_F(VerifiedFileTest, AnyRangeIsWhatWasWritten) {
  constexpr int64_t kBlock = kBlockBytes;
  write(2 * kBlock + 77);
  const auto file = open();
  const std::pair<int64_t, int64_t> ranges[] = {
      {0, 8}, {3, 0}, {1, kBlock}, {kBlock, kBlock}, {kBlock - 1, 2}, {0, 2 * kBlock + 77}, {2 * kBlock + 76, 1}};
  for (const auto& [offset, size] : ranges) {
    std::vector<char> out(static_cast<size_t>(size));
    ASSERT_TRUE(file->read(offset, size, out.data()).ok());
    EXPECT_TRUE(std::equal(out.begin(), out.end(), content_.begin() + offset)) << offset << " " << size;
  }
  EXPECT_TRUE(file->verify().ok());
}

TEST_F(VerifiedFileTest, ChecksumsDoNotDependOnThePieces) {
  write(kBlockBytes + 5);
  BlockSums whole;
  whole.update(content_.data(), content_.size());
  EXPECT_EQ(whole.finish(), sums_);
}

TEST_F(VerifiedFileTest, AFlippedBitIsFoundWhereverItIsRead) {
  write(kBlockBytes + 100);
  for (const int64_t offset : {int64_t{0}, kBlockBytes - 1, kBlockBytes, kBlockBytes + 99}) {
    std::vector<char> damaged = content_;
    damaged[static_cast<size_t>(offset)] ^= 0x10;
    std::ofstream(path_, std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(damaged.size()));
    const auto file = open();
    char byte = 0;
    const absl::Status status = file->read(offset, 1, &byte);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr(path_), HasSubstr("damaged")));
    EXPECT_FALSE(file->verify().ok());
    const int64_t other_block = offset < kBlockBytes ? kBlockBytes : 0;
    EXPECT_TRUE(file->read(other_block, 1, &byte).ok()) << "the other block is whole";
  }
}

TEST_F(VerifiedFileTest, OnlyARegularFileOfTheRightSizeIsRead) {
  write(1000);
  const auto wrong_size = VerifiedFile::open(path_, 999, sums_);
  EXPECT_THAT(std::string(wrong_size.status().message()), HasSubstr("expected 999 bytes, found 1000"));
  const std::string link = path_ + ".link";
  fs::remove(link);
  fs::create_symlink(path_, link);
  EXPECT_FALSE(VerifiedFile::open(link, 1000, sums_).ok());
  EXPECT_FALSE(VerifiedFile::open(testing::TempDir(), 1000, sums_).ok());
  EXPECT_FALSE(VerifiedFile::open(path_ + ".gone", 1000, sums_).ok());
}

} // namespace
} // namespace distill::checkpoint
