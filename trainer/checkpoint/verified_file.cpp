#include "trainer/checkpoint/verified_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "data/base/checksum.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/index.h"

namespace distill::checkpoint {

void BlockSums::update(const char* data, size_t size) {
  constexpr auto kBlock = static_cast<size_t>(kBlockBytes);
  while (size > 0) {
    size_t taken = 0;
    if (pending_.empty() && size >= kBlock) {
      taken = kBlock;
      sums_.push_back(base::checksum(data, kBlock));
    } else {
      taken = std::min(size, kBlock - pending_.size());
      pending_.insert(pending_.end(), data, data + taken);
      if (pending_.size() == kBlock) {
        sums_.push_back(base::checksum(pending_.data(), kBlock));
        pending_.clear();
      }
    }
    data += taken;
    size -= taken;
  }
}

std::vector<uint64_t> BlockSums::finish() {
  if (!pending_.empty()) {
    sums_.push_back(base::checksum(pending_.data(), pending_.size()));
    pending_.clear();
  }
  return std::move(sums_);
}

absl::StatusOr<std::unique_ptr<VerifiedFile>> VerifiedFile::open(
    const std::string& path, int64_t bytes, const std::vector<uint64_t>& block_sums) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return absl::DataLossError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  }
  std::unique_ptr<VerifiedFile> file(new VerifiedFile(path, fd, bytes, block_sums));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(path, ": expected a regular file"));
  }
  if (info.st_size != bytes) {
    return absl::DataLossError(absl::StrCat(path, ": expected ", bytes, " bytes, found ", info.st_size));
  }
  TORCH_CHECK(
      static_cast<int64_t>(block_sums.size()) == (bytes + kBlockBytes - 1) / kBlockBytes, path, ": ", block_sums.size(),
      " checksums for ", bytes, " bytes");
  return file;
}

VerifiedFile::~VerifiedFile() {
  ::close(fd_);
}

int64_t VerifiedFile::block_size(int64_t block) const {
  return std::min(kBlockBytes, bytes_ - block * kBlockBytes);
}

absl::Status VerifiedFile::read_block(int64_t block, char* out) {
  const int64_t begin = block * kBlockBytes, size = block_size(block);
  for (int64_t done = 0; done < size;) {
    const ssize_t count = ::pread(fd_, out + done, static_cast<size_t>(size - done), begin + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": cannot read at byte ", begin + done, ": ",
          count < 0 ? std::strerror(errno) : "the file ends there"));
    }
    done += count;
  }
  const uint64_t found = base::checksum(out, static_cast<size_t>(size));
  const uint64_t expected = block_sums_[static_cast<size_t>(block)];
  if (found != expected) {
    return absl::DataLossError(absl::StrCat(
        path_, ": bytes ", begin, " to ", begin + size, " are damaged: expected checksum ",
        base::checksum_text(expected), ", found ", base::checksum_text(found)));
  }
  return absl::OkStatus();
}

absl::Status VerifiedFile::read(int64_t offset, int64_t size, char* out) {
  TORCH_CHECK(
      offset >= 0 && size >= 0 && offset <= bytes_ - size, path_, ": bytes ", offset, " to ", offset + size, " of ",
      bytes_);
  while (size > 0) {
    const int64_t block = offset / kBlockBytes, within = offset % kBlockBytes;
    const int64_t count = std::min(size, block_size(block) - within);
    if (count == block_size(block) && block != buffered_) {
      RETURN_IF_ERROR(read_block(block, out));
    } else {
      if (block != buffered_) {
        buffered_ = -1;
        buffer_.resize(static_cast<size_t>(block_size(block)));
        RETURN_IF_ERROR(read_block(block, buffer_.data()));
        buffered_ = block;
      }
      std::memcpy(out, buffer_.data() + within, static_cast<size_t>(count));
    }
    offset += count;
    out += count;
    size -= count;
  }
  return absl::OkStatus();
}

absl::Status VerifiedFile::verify(const base::ReadProgress& progress) {
  buffered_ = -1;
  buffer_.resize(static_cast<size_t>(std::min(kBlockBytes, bytes_)));
  for (int64_t block = 0; block * kBlockBytes < bytes_; ++block) {
    RETURN_IF_ERROR(read_block(block, buffer_.data()));
    if (progress) {
      progress(block_size(block));
    }
  }
  return absl::OkStatus();
}

} // namespace distill::checkpoint
