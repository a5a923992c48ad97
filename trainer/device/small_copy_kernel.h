#pragma once

#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace distill::device {

// Queues a copy of `bytes` bytes, of device memory or of host memory that the device has mapped. Returns null, or
// CUDA's error message.
const char* launch_small_copy(void* to, const void* from, int64_t bytes, CUstream_st* stream);

} // namespace distill::device
