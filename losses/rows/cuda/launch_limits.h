#pragma once

#include <cstdint>

// These limits say how large a launch of the row kernels may be.
namespace distill::losses {

constexpr int64_t kMostRows = INT32_MAX; // blocks of a grid
constexpr int64_t kMostColumns = int64_t{1} << 30; // their numbers stay below 2^31 when a thread looks ahead

// Returns null, or a message that says what is too large.
inline const char* beyond_limits(int64_t rows, int64_t columns) {
  return rows > kMostRows || columns > kMostColumns ? "more than 2^31 - 1 rows or 2^30 columns" : nullptr;
}

} // namespace distill::losses
