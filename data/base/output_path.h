#pragma once

#include <absl/status/status.h>

#include <string>

// Whether a path can be written to, found out before any work is done for it. Nothing is created. Errors are
// InvalidArgument and begin with `name`, the key or option that the path comes from; they say which part of the path is
// in the way: a file where a folder should be, a link to nothing or to itself, a read-only file system, a folder
// without permission to write, a name that is too long, ~ or a variable, of which a shell would have made a path.
namespace distill::base {

// Says so where a path has them; empty: it has none.
std::string not_expanded(const std::string& path);

// `path` is a folder in which files can be made, or can be made as one.
absl::Status check_output_folder(const std::string& name, const std::string& path);

// `path` is a regular file that can be replaced by renaming another one, or can be made as one in a folder that exists.
absl::Status check_output_file(const std::string& name, const std::string& path);

} // namespace distill::base
