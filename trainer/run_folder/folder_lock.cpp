#include "trainer/run_folder/folder_lock.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "data/base/status_macros.h"
#include "trainer/run_folder/lock_holder.h"

namespace distill::trainer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll(20);
constexpr size_t kMaxContent = 64 << 10; // bytes
constexpr int kMaxReplaced = 1000; // attempts that find the file replaced by another process

std::string lock_path(const std::string& folder) {
  return (std::filesystem::path(folder) / kLockFile).string();
}

absl::Status system_error(const std::string& path, const char* action, int error) {
  const std::string message = absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error));
  const bool denied = error == EACCES || error == EPERM || error == EROFS;
  return error == ENOENT || error == ESTALE ? absl::NotFoundError(message)
      : denied                              ? absl::PermissionDeniedError(message)
                                            : absl::InternalError(message);
}

// A file that is closed at the end, unless it is kept.
class OpenFile {
 public:
  static absl::StatusOr<OpenFile> open(const std::string& path, int flags) {
    // O_NONBLOCK: opening a pipe does not block.
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd < 0) {
      return system_error(path, "open", errno);
    }
    OpenFile file(path, fd);
    struct stat info {};
    if (::fstat(fd, &info) != 0) {
      return system_error(path, "open", errno);
    }
    return S_ISREG(info.st_mode)
        ? absl::StatusOr<OpenFile>(std::move(file))
        : absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file, found another kind"));
  }
  OpenFile(OpenFile&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  ~OpenFile() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int fd() const {
    return fd_;
  }
  int keep() {
    return std::exchange(fd_, -1);
  }
  std::string content() const {
    std::string text(kMaxContent, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(::pread(fd_, text.data(), text.size(), 0), 0)));
    return text;
  }
  absl::Status write(const std::string& content) const {
    // In one call, so that a reader sees no part of it.
    const ssize_t written = ::pwrite(fd_, content.data(), content.size(), 0);
    const bool whole = written == static_cast<ssize_t>(content.size());
    if (!whole || ::ftruncate(fd_, written) != 0 || ::fsync(fd_) != 0) {
      return system_error(path_, "write", written >= 0 && !whole ? ENOSPC : errno);
    }
    return absl::OkStatus();
  }

 private:
  OpenFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
};

enum class Lock {
  kFree, // after F_OFD_SETLK: this open file holds the lock now
  kHeld, // another open file holds the lock
  kNotSupported, // the file system has no such locks
};

// `command`: F_OFD_SETLK, or F_OFD_GETLK, which takes nothing.
Lock lock(const OpenFile& file, int command, const LockOptions& options) {
  struct flock wanted {}; // l_pid 0, as open-file-description locks want it
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  int result = 0;
  do {
    result = ::fcntl(file.fd(), command, &wanted);
  } while (result != 0 && errno == EINTR);
  if (!options.supported || (result != 0 && errno != EAGAIN && errno != EACCES)) {
    return Lock::kNotSupported;
  }
  const bool held = result != 0 || (command == F_OFD_GETLK && wanted.l_type != F_UNLCK);
  return held ? Lock::kHeld : Lock::kFree;
}

// Whether the file at the path is still the open one.
bool is_at_path(int fd, const std::string& path) {
  struct stat own {
  }, there{};
  return ::fstat(fd, &own) == 0 && ::lstat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
      own.st_ino == there.st_ino;
}

std::string holder_text(const std::optional<LockHolder>& holder, const std::string& folder) {
  return holder ? holder->text() : absl::StrCat("a process that ", lock_path(folder), " does not name");
}

// Waits a moment for a holder that may be about to end. FailedPrecondition: it has been waited for long enough.
absl::Status wait_for(
    const std::string& folder, const OpenFile& file, Clock::time_point began, const LockOptions& options) {
  const auto holder = LockHolder::parse(file.content());
  if (Clock::now() >= began + (holder && holder->is_ending() ? options.ending : options.busy)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run.dir: ", folder, " is in use by ", holder_text(holder, folder),
        "; wait until that job has ended, stop it, or name another run.dir"));
  }
  std::this_thread::sleep_for(kPoll);
  return absl::OkStatus();
}

// `content`: of the lock file before this process wrote to it; empty: it is new.
std::string note_of(const std::string& folder, Lock lock, const std::string& content) {
  const auto holder = LockHolder::parse(content);
  std::string note;
  if (!content.empty()) {
    note = absl::StrCat(
        "run.dir: the lock of ", folder, " was left by ", holder_text(holder, folder),
        ", which ended without releasing it; it has been taken over");
  }
  const bool unseen = lock == Lock::kNotSupported || (holder && !holder->is_on_this_host());
  if (unseen && !content.empty()) {
    absl::StrAppend(&note, ". If that process still runs, two jobs write to this folder: stop one of them");
  }
  if (lock == Lock::kNotSupported) {
    absl::StrAppend(
        &note, note.empty() ? "" : "\n", "run.dir: the file system of ", folder,
        " has no locks, so that a second job in this folder is not refused");
  }
  return note;
}

} // namespace

FolderLock::~FolderLock() {
  if (is_at_path(fd_, path_)) {
    ::unlink(path_.c_str()); // before the lock is released, so that nobody else's file is removed
  }
  ::close(fd_);
}

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::take(const std::string& folder, const LockOptions& options) {
  const std::string path = lock_path(folder);
  const Clock::time_point began = Clock::now();
  for (int replaced = 0; replaced < kMaxReplaced;) {
    ASSIGN_OR_RETURN(OpenFile file, OpenFile::open(path, O_RDWR | O_CREAT));
    const Lock found = lock(file, F_OFD_SETLK, options);
    if (found == Lock::kHeld) {
      RETURN_IF_ERROR(wait_for(folder, file, began, options));
      continue;
    }
    if (!is_at_path(file.fd(), path)) { // its holder has ended and removed it
      ++replaced;
      continue;
    }
    std::string note = note_of(folder, found, file.content());
    if (absl::Status status = file.write(LockHolder::this_process().json()); !status.ok()) {
      ::unlink(path.c_str()); // nobody's name is in it
      return status;
    }
    return std::unique_ptr<FolderLock>(new FolderLock(path, file.keep(), std::move(note)));
  }
  return absl::InternalError(absl::StrCat(path, ": cannot be locked: the file is replaced again and again"));
}

absl::Status FolderLock::check_free(const std::string& folder, const LockOptions& options) {
  const Clock::time_point began = Clock::now();
  for (;;) {
    const auto file = OpenFile::open(lock_path(folder), O_RDONLY);
    if (!file.ok() || lock(*file, F_OFD_GETLK, options) != Lock::kHeld) {
      return absl::OkStatus(); // take() reports why the file cannot be opened
    }
    RETURN_IF_ERROR(wait_for(folder, *file, began, options));
  }
}

std::optional<std::string> FolderLock::holder(const std::string& folder) {
  const auto file = OpenFile::open(lock_path(folder), O_RDONLY);
  return file.ok() && lock(*file, F_OFD_GETLK, {}) == Lock::kHeld
      ? std::optional(holder_text(LockHolder::parse(file->content()), folder))
      : std::nullopt;
}

} // namespace distill::trainer
