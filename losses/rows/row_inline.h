#pragma once

// Functions for host and device that are always inlined.
#if defined(__CUDACC__)
#define DISTILL_ROW_INLINE __host__ __device__ __forceinline__
#else
#define DISTILL_ROW_INLINE inline __attribute__((always_inline))
#endif
