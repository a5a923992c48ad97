#pragma once

#include <cstdint>

namespace distill::metrics {

// Of this process, from /proc/self/status.
int64_t peak_resident_bytes();
// Of the machine, from /proc/meminfo.
int64_t host_memory_bytes();

} // namespace distill::metrics
