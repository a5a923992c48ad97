// Stands in for CUDA's header where a kernel is compiled for a CPU.
#pragma once

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  // To the nearest, ties to even.
  explicit __nv_bfloat16(float x) {
    const auto all = same_bits<uint32_t>(x);
    bits = x != x ? 0x7fff : static_cast<uint16_t>((all + 0x7fffU + ((all >> 16U) & 1U)) >> 16U);
  }
  explicit __nv_bfloat16(double x) : __nv_bfloat16(static_cast<float>(x)) {}
  explicit operator float() const {
    return same_bits<float>(static_cast<uint32_t>(bits) << 16U);
  }
  explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return static_cast<float>(x);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return __nv_bfloat16(x);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
