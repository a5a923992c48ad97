// Stands in for CUDA's header where a kernel is compiled for a CPU (tests/losses/emulation/grid.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/losses/emulation/grid.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};

inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}

using std::max;
using std::min;

template <typename To, typename From>
To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof(to));
  return to;
}
inline int __float_as_int(float x) {
  return same_bits<int>(x);
}
inline float __int_as_float(int x) {
  return same_bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return same_bits<float>(x);
}

// threadIdx, blockIdx, blockDim and gridDim have one dimension: y and z are 0.
struct OneDimension {
  unsigned x;
  unsigned y = 0;
  unsigned z = 0;
};
#define threadIdx (OneDimension{emulation::here().thread})
#define blockIdx (OneDimension{emulation::here().block_of_grid})
#define blockDim (OneDimension{emulation::here().threads})
#define gridDim (OneDimension{emulation::here().blocks_of_grid})

inline void __syncthreads() {
  emulation::sync_block();
}
inline void __syncwarp() {
  emulation::sync_lanes(emulation::kAllLanes);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return emulation::from_lane(mask, value, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other) {
  return emulation::from_lane(mask, value, emulation::lane() ^ other);
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return emulation::over_lanes(mask, value, [](int a, int b) { return max(a, b); });
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return emulation::over_lanes(mask, value, [](int a, int b) { return min(a, b); });
}
// Only one thread of the program runs at a time.
inline int atomicMin(int* at, int value) {
  const int before = *at;
  *at = min(before, value);
  return before;
}

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "";
}
