#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::checkpoint {

struct VerifiedCheckpoint {
  int64_t step = 0;
  int64_t files = 0;
  int64_t bytes = 0;
};

// Reads a whole checkpoint and compares every checksum. DataLoss lists every damaged file.
absl::StatusOr<VerifiedCheckpoint> verify_checkpoint(const std::string& folder);

} // namespace distill::checkpoint
