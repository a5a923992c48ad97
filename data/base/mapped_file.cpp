#include "data/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace distill::base {

MappedFile::MappedFile(std::string path, const uint8_t* bytes, uint64_t size)
    : path_(std::move(path)), bytes_(bytes), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_ != nullptr) {
    ::munmap(const_cast<uint8_t*>(bytes_), size_);
  }
}

absl::StatusOr<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  }
  struct stat info = {};
  const bool known = ::fstat(fd, &info) == 0;
  const int stat_error = errno;
  if (!known || !S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(fd);
    if (!known) {
      return absl::ErrnoToStatus(stat_error, absl::StrCat(path, ": cannot stat"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path, S_ISREG(info.st_mode) ? ": the file is empty" : ": not a regular file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (bytes == MAP_FAILED) {
    return absl::ErrnoToStatus(map_error, absl::StrCat(path, ": cannot map ", size, " bytes"));
  }
  return MappedFile(path, static_cast<const uint8_t*>(bytes), size);
}

void MappedFile::advise(uint64_t begin, uint64_t end, Access access) const {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  begin -= begin % page;
  end = std::min(end, size_);
  if (begin < end) {
    const int advice = access == Access::kRandom ? MADV_RANDOM
        : access == Access::kSequential          ? MADV_SEQUENTIAL
                                                 : MADV_NORMAL;
    ::madvise(const_cast<uint8_t*>(bytes_) + begin, end - begin, advice);
  }
}

} // namespace distill::base
