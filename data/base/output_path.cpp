#include "data/base/output_path.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>

namespace distill::base {
namespace {

namespace fs = std::filesystem;

// What is in the way of making files in `folder`, which exists; empty: nothing.
std::string in_existing(const fs::path& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return errno == EROFS ? absl::StrCat(folder.string(), " is on a file system that is mounted read-only")
        : errno == EACCES ? absl::StrCat("there is no permission to make files in ", folder.string())
                          : absl::StrCat(folder.string(), " cannot be written to: ", std::strerror(errno));
  }
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 && (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC)) {
    return absl::StrCat(folder.string(), " belongs to the kernel, which takes no files there");
  }
  return "";
}

std::string in_folder(const fs::path& folder);

// What is in the way of making `path`, which does not exist or cannot be looked at for the reason `error`.
std::string in_missing(const fs::path& path, int error) {
  if (error == ENAMETOOLONG || path.filename().native().size() > NAME_MAX) {
    return absl::StrCat("a name in it, or the whole path, is longer than the system allows (", NAME_MAX, " bytes)");
  }
  const fs::path parent = path.parent_path();
  if (parent == path) {
    return absl::StrCat(path.string(), " cannot be looked at: ", std::strerror(error));
  }
  if (std::string above = in_folder(parent); !above.empty()) {
    return above;
  }
  struct stat link {};
  const bool is_link = ::lstat(path.c_str(), &link) == 0 && S_ISLNK(link.st_mode);
  std::error_code ignored;
  if (is_link && error == ELOOP) {
    return absl::StrCat(path.string(), " is a symbolic link that leads back to itself");
  }
  if (is_link) {
    return absl::StrCat(
        path.string(), " is a symbolic link to ", fs::read_symlink(path, ignored).string(),
        ", which does not exist; make that folder, or remove the link");
  }
  return error == ENOENT ? "" : absl::StrCat(path.string(), " cannot be looked at: ", std::strerror(error));
}

// What is in the way of making files in `folder`, an absolute path that may not exist yet; empty: nothing.
std::string in_folder(const fs::path& folder) {
  struct stat there {};
  if (::stat(folder.c_str(), &there) != 0) {
    return in_missing(folder, errno);
  }
  return S_ISDIR(there.st_mode) ? in_existing(folder)
                                : absl::StrCat(folder.string(), " is a file, where a folder is needed");
}

// The path without a slash at its end. It is not normalised further, since "link/.." need not be the link's folder.
fs::path absolute(const std::string& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  while (!whole.has_filename() && whole.has_relative_path()) {
    whole = whole.parent_path();
  }
  return whole;
}

absl::Status refused(const std::string& name, const char* expected, const std::string& path, std::string found) {
  std::error_code error;
  if (const std::string as_written = not_expanded(path); !as_written.empty() && !fs::exists(path, error)) {
    found = as_written;
  }
  return found.empty()
      ? absl::OkStatus()
      : absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected, ", found ", path, ": ", found));
}

} // namespace

std::string not_expanded(const std::string& path) {
  const auto begins_name = [](char c) {
    return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '{';
  };
  for (size_t at = path.find('$'); at != std::string::npos; at = path.find('$', at + 1)) {
    if (at + 1 < path.size() && begins_name(path[at + 1])) {
      return "variables are not expanded: write the whole path";
    }
  }
  return path.starts_with('~') ? "~ is not expanded: write the whole path" : "";
}

absl::Status check_output_folder(const std::string& name, const std::string& path) {
  constexpr const char* kExpected = "a folder that can be made or written to";
  if (path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected a folder, found an empty path"));
  }
  return refused(name, kExpected, path, in_folder(absolute(path)));
}

absl::Status check_output_file(const std::string& name, const std::string& path) {
  constexpr const char* kExpected = "a file that can be made or replaced";
  const fs::path whole = absolute(path);
  if (path.empty() || path.back() == '/') {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected the name of a file, found \"", path, "\""));
  }
  std::string found = in_folder(whole.parent_path());
  std::error_code error;
  if (found.empty() && !fs::exists(whole.parent_path(), error)) {
    found = absl::StrCat("there is no folder ", whole.parent_path().string());
  }
  struct stat there {};
  if (found.empty() && ::lstat(whole.c_str(), &there) == 0) {
    found = S_ISDIR(there.st_mode) ? "it is a folder"
        : S_ISREG(there.st_mode)   ? ""
                                   : "it is a link or a device, which a new file would take the place of";
  } else if (found.empty() && errno != ENOENT) {
    found = in_missing(whole, errno);
  }
  return refused(name, kExpected, path, found);
}

} // namespace distill::base
