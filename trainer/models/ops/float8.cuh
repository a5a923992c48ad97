#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "trainer/models/ops/float8_format.h"
#include "trainer/models/ops/rows.cuh"

// Rounding a row to e4m3 with one scale. trainer/models/ops/float8.h defines the format.
namespace distill::models {

// The result is NaN if one of the numbers is.
__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// The largest value, not negative, over the threads of a row; NaN if one of them is.
__device__ __forceinline__ float row_max(float value, float* shared) {
  return row_reduce(value, shared, 0.0F, [](float a, float b) { return larger(a, b); });
}

// The largest magnitude of a pack's elements, which is NaN if one of them is. Elements of 16 bits are compared in
// pairs.
template <typename T, int V>
__device__ __forceinline__ float largest_of(const Pack<T, V>& pack) {
  if constexpr (sizeof(T) == 2 && V == 8) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    Pair pairs[V / 2];
    memcpy(pairs, &pack, sizeof(pack));
    const Pair largest = __hmax2_nan(
        __hmax2_nan(__habs2(pairs[0]), __habs2(pairs[1])), __hmax2_nan(__habs2(pairs[2]), __habs2(pairs[3])));
    return larger(static_cast<float>(largest.x), static_cast<float>(largest.y));
  } else {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      largest = larger(largest, fabsf(static_cast<float>(pack[i])));
    }
    return largest;
  }
}

__device__ __forceinline__ float float8_scale(float largest) {
  const float scale = largest / kFloat8Max;
  return scale < kFloat8SmallestScale ? kFloat8SmallestScale : scale; // NaN stays
}

// Does for one row what magnitudes_to_scales_ of float8_shard.h does.
__device__ __forceinline__ float float8_power_of_two_scale(float largest) {
  const float clamped = fmaxf(largest, kFloat8Max * kFloat8SmallestPower);
  const float scale = __int_as_float((__float_as_int(clamped) + 0x001fffff) & 0x7f800000) * 0x1p-8F;
  return isnan(largest) ? largest : scale;
}

// Number of values other than zero that rounding makes zero.
template <typename T, int V>
__device__ __forceinline__ unsigned lost_in(const Pack<T, V>& pack, float inverse) {
  constexpr float kHalfOfSmallest = 0x1p-10F; // rounds to even, which is zero
  unsigned lost = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float x = static_cast<float>(pack[i]);
    lost += x != 0 && fabsf(x * inverse) <= kHalfOfSmallest;
  }
  return lost;
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

// Four rows of four bytes become four columns: byte j of out[i] is byte i of in[j].
__device__ __forceinline__ void transpose_words(const uint32_t (&in)[4], uint32_t (&out)[4]) {
  const uint32_t low01 = __byte_perm(in[0], in[1], 0x5140); // bytes 0, 1 of both rows, interleaved
  const uint32_t low23 = __byte_perm(in[2], in[3], 0x5140);
  const uint32_t high01 = __byte_perm(in[0], in[1], 0x7362);
  const uint32_t high23 = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(low01, low23, 0x5410);
  out[1] = __byte_perm(low01, low23, 0x7632);
  out[2] = __byte_perm(high01, high23, 0x5410);
  out[3] = __byte_perm(high01, high23, 0x7632);
}

} // namespace distill::models
