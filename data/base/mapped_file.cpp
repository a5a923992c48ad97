#include "data/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace distill::base {
namespace {

absl::Status system_error(const std::string& path, const char* action, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

uint64_t page_size() {
  return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

} // namespace

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
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // opening a pipe must not block
  if (fd < 0) {
    return system_error(path, "open", errno);
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return system_error(path, "stat", error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  // Mapping no bytes is an error of mmap.
  void* bytes = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (bytes == MAP_FAILED) {
    return system_error(path, "map", map_error);
  }
  return MappedFile(path, static_cast<const uint8_t*>(bytes), size);
}

void MappedFile::advise(uint64_t begin, uint64_t end, Access access) const {
  begin -= begin % page_size();
  end = std::min(end, size_);
  if (begin < end) {
    const int advice = access == Access::kRandom ? MADV_RANDOM
        : access == Access::kSequential          ? MADV_SEQUENTIAL
                                                 : MADV_NORMAL;
    ::madvise(const_cast<uint8_t*>(bytes_) + begin, end - begin, advice);
  }
}

void MappedFile::release(uint64_t begin, uint64_t end) const {
  const uint64_t page = page_size();
  const uint64_t first = (begin + page - 1) / page * page;
  const uint64_t last = end / page * page;
  if (first < last) {
    ::madvise(const_cast<uint8_t*>(bytes_) + first, last - first, MADV_DONTNEED);
  }
}

} // namespace distill::base
