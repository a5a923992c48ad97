#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "data/base/checksum.h"

namespace distill::checkpoint {

struct VerifiedCheckpoint {
  int64_t step = 0;
  int64_t files = 0;
  int64_t bytes = 0;
};

// Reads a whole checkpoint and verifies all checksums. DataLoss lists all damaged files.
absl::StatusOr<VerifiedCheckpoint> verify_checkpoint(
    const std::string& folder, const base::ReadProgress& progress = {});

} // namespace distill::checkpoint
