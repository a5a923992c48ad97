#include "trainer/run_folder/lock_file.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace distill::trainer {
namespace {

constexpr size_t kMaxContent = 64 << 10; // bytes

absl::Status system_error(const std::string& path, const char* action, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ESTALE: // removed by another host
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InternalError(message);
  }
}

struct flock whole_file() {
  struct flock lock {}; // l_pid 0, as open-file-description locks want it
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

} // namespace

absl::StatusOr<LockFile> LockFile::open(const std::string& path, int flags) {
  // O_NONBLOCK: opening a pipe does not block.
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0) {
    return system_error(path, "open", errno);
  }
  LockFile file(path, fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return system_error(path, "open", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  return file;
}

LockFile::LockFile(LockFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

LockFile& LockFile::operator=(LockFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

LockFile::~LockFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

LockFile::Lock LockFile::lock() {
  struct flock wanted = whole_file();
  int result = 0;
  do {
    result = ::fcntl(fd_, F_OFD_SETLK, &wanted);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return Lock::kFree;
  }
  return errno == EAGAIN || errno == EACCES ? Lock::kHeld : Lock::kNotSupported;
}

LockFile::Lock LockFile::probe() const {
  struct flock wanted = whole_file();
  if (::fcntl(fd_, F_OFD_GETLK, &wanted) != 0) {
    return Lock::kNotSupported;
  }
  return wanted.l_type == F_UNLCK ? Lock::kFree : Lock::kHeld;
}

bool LockFile::is_at_path() const {
  struct stat own {
  }, there{};
  return ::fstat(fd_, &own) == 0 && ::lstat(path_.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
      own.st_ino == there.st_ino;
}

int64_t LockFile::modified() const {
  struct stat info {};
  return ::fstat(fd_, &info) == 0 ? int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec : 0;
}

void LockFile::renew() const {
  ::futimens(fd_, nullptr);
}

std::string LockFile::content() const {
  std::string text(kMaxContent, '\0');
  const ssize_t count = ::pread(fd_, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return text;
}

absl::Status LockFile::write(const std::string& content) const {
  // In one call, so that a reader sees no part of it.
  const ssize_t written = ::pwrite(fd_, content.data(), content.size(), 0);
  const bool whole = written == static_cast<ssize_t>(content.size());
  if (!whole || ::ftruncate(fd_, written) != 0 || ::fsync(fd_) != 0) {
    return system_error(path_, "write", written >= 0 && !whole ? ENOSPC : errno);
  }
  return absl::OkStatus();
}

} // namespace distill::trainer
