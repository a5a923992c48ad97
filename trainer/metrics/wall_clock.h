#pragma once

#include <chrono>
#include <cstdint>

namespace distill::metrics {

// The time of day, milliseconds since 1970 (UTC).
inline int64_t wall_clock_ms() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

} // namespace distill::metrics
