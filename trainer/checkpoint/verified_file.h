#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Files whose every block has a checksum, written and read.
namespace distill::checkpoint {

// Checksums of the blocks of a file that is written from its start.
class BlockSums {
 public:
  void update(const char* data, size_t size);
  std::vector<uint64_t> finish(); // the last block may be short

 private:
  std::vector<char> pending_; // of the block that is not full yet
  std::vector<uint64_t> sums_;
};

// Reads a file and checks every block that it touches. The last block stays in memory, so that reading in order reads
// every byte once. DataLoss names the file and the block.
class VerifiedFile {
 public:
  // The file must have exactly `bytes`; it is not followed where it is a link.
  static absl::StatusOr<std::unique_ptr<VerifiedFile>> open(
      const std::string& path, int64_t bytes, const std::vector<uint64_t>& block_sums);
  ~VerifiedFile();
  VerifiedFile(const VerifiedFile&) = delete;
  VerifiedFile& operator=(const VerifiedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  int64_t bytes() const {
    return bytes_;
  }
  // Bytes [offset, offset + size), which must lie in the file.
  absl::Status read(int64_t offset, int64_t size, char* out);
  // All blocks.
  absl::Status verify();

 private:
  VerifiedFile(std::string path, int fd, int64_t bytes, const std::vector<uint64_t>& block_sums)
      : path_(std::move(path)), fd_(fd), bytes_(bytes), block_sums_(block_sums) {}
  absl::Status read_block(int64_t block, char* out);
  int64_t block_size(int64_t block) const;

  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::vector<uint64_t> block_sums_;
  std::vector<char> buffer_; // block `buffered_`
  int64_t buffered_ = -1;
};

} // namespace distill::checkpoint
