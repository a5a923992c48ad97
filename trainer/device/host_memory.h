#pragma once

#include <cstdint>

namespace distill::device {

// These functions count the memory of this host.
int64_t host_memory_bytes();

// Host memory that this process may still take: the memory that the system reports as available, or less if a control
// group sets a limit.
int64_t available_host_bytes();

// Largest resident size of this process so far.
int64_t peak_resident_bytes();

} // namespace distill::device
