#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>

// Files that survive a crash: what these functions have returned ok for is on the disk.
namespace distill::base {

// Creates or replaces a file and syncs it. Errors name the file and the system's reason.
absl::Status write_file(const std::string& path, std::string_view content);

// Syncs a folder's own entries.
absl::Status sync_folder(const std::string& path);

// Renames a folder that is complete to its final name, over an older one if there is one, and syncs the parent.
absl::Status publish_folder(const std::string& complete, const std::string& target);

} // namespace distill::base
