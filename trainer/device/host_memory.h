#pragma once

#include <cstdint>

namespace distill::device {

// Of this host.
int64_t host_memory_bytes();

// Host memory that this process may still take: what the system says is available, or less where a control group sets a
// limit.
int64_t available_host_bytes();

// The most that was resident for this process so far.
int64_t peak_resident_bytes();

} // namespace distill::device
