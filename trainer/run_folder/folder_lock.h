#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace distill::trainer {

inline constexpr const char* kLockFile = ".lock"; // in the locked folder

struct LockOptions {
  bool supported = true; // false, for tests: as on a file system that has no locks
  std::chrono::milliseconds busy{1000}; // how long a holder that is about to end is waited for
  std::chrono::milliseconds ending{60000}; // the same for one that has been killed and releases its memory
};

// A lock on a folder, from take() to the destructor or to the end of the process, however that comes: an
// open-file-description lock (fcntl(2), F_OFD_SETLK) on the file .lock, which children that are started with exec do
// not inherit. The file names the holder, and is removed at a regular end. A file that is there and not locked was
// left by a process that died, and the lock is taken over.
//
// Where the file system has no such locks, or shares them among the processes of one host alone, nothing keeps a second
// job out; note() then describes what was found.
class FolderLock {
 public:
  // The folder exists. FailedPrecondition: another process holds the lock; the message names it. NotFound: the folder
  // has been removed. Internal, PermissionDenied or InvalidArgument: the file cannot be opened. Blocks while it waits
  // for what the options name.
  static absl::StatusOr<std::unique_ptr<FolderLock>> take(const std::string& folder, const LockOptions& options = {});

  // Returns the same error if another process is known to hold the lock. Changes nothing.
  static absl::Status check_free(const std::string& folder, const LockOptions& options = {});

  // Describes the process that holds the lock now; nullopt: none is known.
  static std::optional<std::string> holder(const std::string& folder);

  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // For the log: the process whose lock was taken over, or that nothing is locked. Empty: nothing is to be said.
  const std::string& note() const {
    return note_;
  }

 private:
  FolderLock(std::string path, int fd, std::string note) : path_(std::move(path)), fd_(fd), note_(std::move(note)) {}

  std::string path_;
  int fd_;
  std::string note_;
};

} // namespace distill::trainer
