#include "tests/fuzz/input_file.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "tests/fuzz/targets.h"

namespace distill::fuzz {

const std::string& own_folder() {
  static const struct Folder {
    std::string path;
    Folder() {
      const char* parent = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
      path = absl::StrCat(parent, "/", kSource, "-", ::getpid());
      std::filesystem::create_directories(path);
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } folder;
  return folder.path;
}

std::string file_with(const uint8_t* data, size_t size, const char* name) {
  const std::string path = absl::StrCat(own_folder(), "/", name);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  TORCH_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), path, ": cannot write");
  ::close(fd);
  return path;
}

} // namespace distill::fuzz
