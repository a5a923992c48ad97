#include "data/base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace distill::base {
namespace {

namespace fs = std::filesystem;

absl::Status system_error(const std::string& path, const char* action, int error) {
  return absl::InternalError(absl::StrCat(path, ": cannot ", action, ": ", std::strerror(error)));
}

// Closes when it leaves scope.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

} // namespace

absl::Status write_file(const std::string& path, std::string_view content) {
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  if (file.fd < 0) {
    return system_error(path, "create", errno);
  }
  while (!content.empty()) {
    const ssize_t written = ::write(file.fd, content.data(), content.size());
    if (written < 0 && errno != EINTR) {
      return system_error(path, "write", errno);
    }
    content.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return ::fsync(file.fd) == 0 ? absl::OkStatus() : system_error(path, "sync", errno);
}

absl::Status sync_folder(const std::string& path) {
  const Descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd < 0 || ::fsync(folder.fd) != 0) {
    return system_error(path, "sync", errno);
  }
  return absl::OkStatus();
}

absl::Status publish_folder(const std::string& complete, const std::string& target) {
  if (absl::Status status = sync_folder(complete); !status.ok()) {
    return status;
  }
  // An older folder steps aside first, so that there is no moment without either.
  const std::string old = target + ".old";
  std::error_code error;
  fs::remove_all(old, error);
  const bool replaces = fs::exists(target, error);
  if (replaces) {
    fs::rename(target, old, error);
  }
  if (!error) {
    fs::rename(complete, target, error);
  }
  if (error) {
    return absl::InternalError(absl::StrCat(complete, ": cannot rename to ", target, ": ", error.message()));
  }
  if (replaces) {
    fs::remove_all(old, error);
  }
  return sync_folder(fs::path(target).parent_path().string());
}

} // namespace distill::base
