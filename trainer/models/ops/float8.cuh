#pragma once

#include <cuda_fp8.h>

#include "trainer/models/ops/rows.cuh"

// Rounding a row to e4m3 with one scale. trainer/models/ops/float8.h defines the format.
namespace distill::models {

constexpr float kFloat8Max = 448.0F;
constexpr float kFloat8SmallestScale = 1e-30F;

template <typename T, int V>
__device__ __forceinline__ float largest_of(const Pack<T, V>& pack) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    largest = fmaxf(largest, fabsf(static_cast<float>(pack[i])));
  }
  return largest;
}

__device__ __forceinline__ float float8_scale(float largest) {
  return fmaxf(largest / kFloat8Max, kFloat8SmallestScale);
}

// Writes V elements, each times `inverse` (1 / the row's scale), at `address`, which is a multiple of V bytes.
template <typename T, int V>
__device__ __forceinline__ void store_float8(uint8_t* address, const Pack<T, V>& pack, float inverse) {
  if constexpr (V == 1) {
    *address = __nv_cvt_float_to_fp8(static_cast<float>(pack[0]) * inverse, __NV_SATFINITE, __NV_E4M3);
  } else {
    static_assert(V % 2 == 0);
    __nv_fp8x2_storage_t pairs[V / 2];
#pragma unroll
    for (int i = 0; i < V / 2; ++i) {
      const float2 two{static_cast<float>(pack[2 * i]) * inverse, static_cast<float>(pack[2 * i + 1]) * inverse};
      pairs[i] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
    }
    if constexpr (V == 8) {
      uint2 words;
      memcpy(&words, pairs, sizeof(words));
      *reinterpret_cast<uint2*>(address) = words;
    } else if constexpr (V == 4) {
      uint32_t word;
      memcpy(&word, pairs, sizeof(word));
      *reinterpret_cast<uint32_t*>(address) = word;
    } else {
      static_assert(V == 2);
      *reinterpret_cast<uint16_t*>(address) = pairs[0];
    }
  }
}

} // namespace distill::models
