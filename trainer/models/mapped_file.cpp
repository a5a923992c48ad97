#include "trainer/models/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace distill::models {
namespace {

absl::Status system_error(const std::string& path, const char* action) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
}

} // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not hold us up
  if (fd < 0) {
    return system_error(path, "open");
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  void* data = nullptr;
  if (info.st_size > 0) {
    data = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
  }
  const int saved = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    errno = saved;
    return system_error(path, "map");
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const char*>(data), static_cast<int64_t>(info.st_size)));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
  }
}

void MappedFile::release(int64_t begin, int64_t end) const {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t first = (begin + page - 1) / page * page;
  const int64_t last = end / page * page;
  if (first < last) {
    ::madvise(const_cast<char*>(data_) + first, static_cast<size_t>(last - first), MADV_DONTNEED);
  }
}

} // namespace distill::models
