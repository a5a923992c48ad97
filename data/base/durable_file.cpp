#include "data/base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "data/base/status_macros.h"

namespace distill::base {
namespace {

namespace fs = std::filesystem;

absl::Status failed(const std::string& path, const std::string& action, const std::string& reason) {
  return absl::InternalError(absl::StrCat(path, ": cannot ", action, ": ", reason));
}

absl::Status system_error(const std::string& path, const char* action, int error) {
  return failed(path, action, std::strerror(error));
}

absl::Status sync_path(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) {
    ::close(fd);
  }
  return synced ? absl::OkStatus() : system_error(path, "sync", error);
}

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

} // namespace

absl::StatusOr<DurableFile> DurableFile::open(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (fd < 0) {
    return system_error(path, "create", errno);
  }
  return DurableFile(path, fd);
}

absl::StatusOr<DurableFile> DurableFile::create(const std::string& path) {
  return open(path, O_TRUNC);
}

absl::StatusOr<DurableFile> DurableFile::overwrite(const std::string& path) {
  return open(path, 0);
}

absl::StatusOr<DurableFile> DurableFile::append_to(const std::string& path) {
  return open(path, O_APPEND);
}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

DurableFile& DurableFile::operator=(DurableFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

DurableFile::~DurableFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

absl::Status DurableFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return system_error(path_, "write", errno);
    }
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return absl::OkStatus();
}

absl::Status DurableFile::resize(int64_t bytes) {
  return ::ftruncate(fd_, bytes) == 0 ? absl::OkStatus() : system_error(path_, "resize", errno);
}

absl::Status DurableFile::write_at(int64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno != EINTR) {
      return system_error(path_, "write", errno);
    }
    const ssize_t done = std::max<ssize_t>(written, 0);
    bytes.remove_prefix(static_cast<size_t>(done));
    offset += done;
  }
  return absl::OkStatus();
}

void DurableFile::start_writeback() const {
  ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE); // an error that matters is met by sync(), too
}

absl::Status DurableFile::sync() const {
  return ::fsync(fd_) == 0 ? absl::OkStatus() : system_error(path_, "sync", errno);
}

absl::Status DurableFile::close() {
  const absl::Status synced = sync();
  if (::close(std::exchange(fd_, -1)) != 0 && synced.ok()) {
    return system_error(path_, "close", errno);
  }
  return synced;
}

absl::Status write_file(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(DurableFile file, DurableFile::create(path));
  RETURN_IF_ERROR(file.write(content));
  return file.close();
}

absl::Status replace_file(const std::string& path, std::string_view content) {
  const std::string partial = path + ".partial";
  std::error_code error;
  absl::Status status = write_file(partial, content);
  if (status.ok()) {
    fs::rename(partial, path, error);
    status = error ? failed(path, "replace", error.message()) : absl::OkStatus();
  }
  if (!status.ok()) {
    fs::remove(partial, error);
    return status;
  }
  return sync_folder(parent_of(path));
}

absl::Status sync_file(const std::string& path) {
  return sync_path(path, 0);
}

absl::Status sync_folder(const std::string& path) {
  return sync_path(path, O_DIRECTORY);
}

absl::Status publish_folder(const std::string& complete, const std::string& target) {
  RETURN_IF_ERROR(sync_folder(complete));
  // The older folder is moved aside first: at no moment are both of them gone.
  const std::string old = target + kReplacedFolder;
  std::error_code error, ignored;
  const bool replaces = fs::exists(target, ignored);
  if (replaces) {
    fs::remove_all(old, ignored); // of a process that was killed here
    fs::rename(target, old, error);
    if (error) {
      return failed(target, "rename to " + old, error.message());
    }
  }
  fs::rename(complete, target, error);
  if (error) {
    if (replaces) {
      fs::rename(old, target, ignored);
    }
    return failed(complete, "rename to " + target, error.message());
  }
  if (replaces) {
    fs::remove_all(old, ignored);
  }
  return sync_folder(parent_of(target));
}

} // namespace distill::base
