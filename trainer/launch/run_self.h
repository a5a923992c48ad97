#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace distill::launch {

// Runs this program again with other arguments, its standard output and error in a file, and waits for its end. Returns
// its exit code; 1 when a signal ended it, and the last line of the output then names the signal.
absl::StatusOr<int> run_self(const std::vector<std::string>& arguments, const std::string& output_file);

} // namespace distill::launch
