#pragma once

#include <cstdint>
#include <cstring>

#include "losses/rows/row_inline.h"

// The fp32 functions of the row mathematics are one instruction each on the device, except tanh, and polynomials on the
// host. Absolute error of log2 on (0, 2] and relative error of exp2 on (-126, 1]: about 2e-7. exp2(0) = 1 and log2(1) =
// 0 exactly; exp2(x < -126) = 0.
namespace distill::losses {

#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
DISTILL_ROW_INLINE float row_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DISTILL_ROW_INLINE float row_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DISTILL_ROW_INLINE float row_tanh(float x) {
  return tanhf(x);
}
#else
DISTILL_ROW_INLINE int32_t row_bits(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

DISTILL_ROW_INLINE float row_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// This is Cephes' exp2f: 2^x = 2^n 2^f with n the nearest integer (found by adding 1.5 * 2^23) and a polynomial in f.
DISTILL_ROW_INLINE float row_exp2(float x) {
  const float bounded = x < -126.0F ? -126.0F : x;
  const float shifted = bounded + 12582912.0F;
  const float f = bounded - (shifted - 12582912.0F);
  float y = 1.535336188319500e-4F;
  y = y * f + 1.339887440266574e-3F;
  y = y * f + 9.618437357674640e-3F;
  y = y * f + 5.550332471162809e-2F;
  y = y * f + 2.402264791363012e-1F;
  y = y * f + 6.931472028550421e-1F;
  y = y * f + 1.0F;
  const auto exponent = static_cast<int32_t>((static_cast<uint32_t>(row_bits(shifted)) + 127U) << 23U);
  return x < -126.0F ? 0.0F : y * row_float(exponent);
}

// This is Cephes' logf on [sqrt(1/2), sqrt(2)) times 2^n. For normal x > 0.
DISTILL_ROW_INLINE float row_log2(float x) {
  const int32_t shifted = row_bits(x) - 0x3f3504f3;
  const int32_t n = shifted >> 23;
  const float f = row_float((shifted & 0x007fffff) + 0x3f3504f3) - 1.0F;
  float y = 7.0376836292e-2F;
  y = y * f - 1.1514610310e-1F;
  y = y * f + 1.1676998740e-1F;
  y = y * f - 1.2420140846e-1F;
  y = y * f + 1.4249322787e-1F;
  y = y * f - 1.6668057665e-1F;
  y = y * f + 2.0000714765e-1F;
  y = y * f - 2.4999993993e-1F;
  y = y * f + 3.3333331174e-1F;
  const float square = f * f;
  return (f + (y * f * square - 0.5F * square)) * 1.44269504F + static_cast<float>(n);
}

// This is the rational approximation that Eigen uses.
DISTILL_ROW_INLINE float row_tanh(float value) {
  const float x = value < -7.9F ? -7.9F : (value > 7.9F ? 7.9F : value);
  const float s = x * x;
  float a = -2.76076847742355e-16F;
  a = a * s + 2.00018790482477e-13F;
  a = a * s - 8.60467152213735e-11F;
  a = a * s + 5.12229709037114e-08F;
  a = a * s + 1.48572235717979e-05F;
  a = a * s + 6.37261928875436e-04F;
  a = a * s + 4.89352455891786e-03F;
  float b = 1.19825839466702e-06F;
  b = b * s + 1.18534705686654e-04F;
  b = b * s + 2.26843463243900e-03F;
  b = b * s + 4.89352518554385e-03F;
  return x * a / b;
}
#endif

} // namespace distill::losses
