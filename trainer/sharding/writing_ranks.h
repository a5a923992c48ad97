#pragma once

#include <cstdint>

namespace distill::sharding {

// The ranks that write files. A rank gives 0 or 1 for itself, and gets the sums over all ranks.
struct WritingRanks {
  int64_t writing = 0; // ranks whose file is not complete yet
  int64_t failed = 0; // ranks that could not write their file
};

} // namespace distill::sharding
