#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace distill::trainer {

// An open file with an open-file-description lock (fcntl(2)). Closing the file releases the lock.
class LockFile {
 public:
  // `flags` of open(2). The descriptor is closed in programs that this process executes, and symbolic links are not
  // followed. NotFound, AlreadyExists (with O_EXCL), PermissionDenied, InvalidArgument (not a regular file), Internal.
  static absl::StatusOr<LockFile> open(const std::string& path, int flags);

  LockFile(LockFile&& other) noexcept;
  LockFile& operator=(LockFile&& other) noexcept;
  ~LockFile();

  enum class Lock {
    kFree, // and after lock(): held by this file
    kHeld, // by another open file
    kNotSupported, // by the file system
  };
  Lock lock();
  Lock probe() const; // takes nothing

  // Whether the file at the path is still this one.
  bool is_at_path() const;
  // Modification time in nanoseconds since the epoch; 0: not known.
  int64_t modified() const;
  // Sets the modification time to now.
  void renew() const;
  // At most 64 KiB of it; empty where it cannot be read.
  std::string content() const;
  absl::Status write(const std::string& content) const;

 private:
  LockFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_ = -1;
};

} // namespace distill::trainer
