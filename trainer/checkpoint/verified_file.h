#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/base/checksum.h"

// Writing and reading files that have a checksum for each block of kBlockBytes.
namespace distill::checkpoint {

// Computes the checksums of the blocks of a file while it is written.
class BlockSums {
 public:
  void update(const char* data, size_t size);
  std::vector<uint64_t> finish(); // the last block may be shorter

 private:
  std::vector<char> pending_; // of the block that is not full yet
  std::vector<uint64_t> sums_;
};

// Reads a file and verifies the checksum of every block that it reads. The last block stays in memory, so that reading
// in order reads every byte once. DataLoss names the file and the block.
class VerifiedFile {
 public:
  // The file must have exactly `bytes` bytes and must not be a symbolic link.
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
  // Reads bytes [offset, offset + size), which must be within the file.
  absl::Status read(int64_t offset, int64_t size, char* out);
  // Verifies all blocks.
  absl::Status verify(const base::ReadProgress& progress = {});

 private:
  VerifiedFile(std::string path, int fd, int64_t bytes, const std::vector<uint64_t>& block_sums)
      : path_(std::move(path)), fd_(fd), bytes_(bytes), block_sums_(block_sums) {}
  absl::Status read_block(int64_t block, char* out);
  int64_t block_size(int64_t block) const;

  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::vector<uint64_t> block_sums_;
  std::vector<char> buffer_; // the bytes of block `buffered_`
  int64_t buffered_ = -1;
};

} // namespace distill::checkpoint
