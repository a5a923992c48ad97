#pragma once

#include <cmath>
#include <limits>

#include "losses/rows/row_functions_fp32.h"

// These are the scalar functions of the row mathematics, for host and device.
namespace distill::losses {

template <typename T>
inline constexpr T kLog2E = static_cast<T>(1.4426950408889634074);
template <typename T>
inline constexpr T kLn2 = static_cast<T>(0.69314718055994530942);
// This stands for log2(0): products with a probability of 0 stay 0.
template <typename T>
inline constexpr T kLogFloor = static_cast<T>(-1e30);
// A sum above it has a term with log2(0) where the other side has probability: the loss is infinite.
template <typename T>
inline constexpr T kInfiniteLoss = static_cast<T>(1e20);

DISTILL_ROW_INLINE double row_exp2(double x) {
  return exp2(x);
}

DISTILL_ROW_INLINE double row_log2(double x) {
  return log2(x);
}

DISTILL_ROW_INLINE double row_tanh(double x) {
  return tanh(x);
}

// From this log2(p / q) on the terms are the same: q is 0 there. 2^kMaxLogRatio is finite.
template <typename T>
inline constexpr T kMaxLogRatio = static_cast<T>(sizeof(T) == 4 ? 126 : 1000);

// Returns b where a is NaN.
DISTILL_ROW_INLINE double row_max(double a, double b) {
  return a > b ? a : b;
}

DISTILL_ROW_INLINE float row_max(float a, float b) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// Returns b where a is NaN.
DISTILL_ROW_INLINE double row_min(double a, double b) {
  return a < b ? a : b;
}

DISTILL_ROW_INLINE float row_min(float a, float b) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  return fminf(a, b);
#else
  return a < b ? a : b;
#endif
}

} // namespace distill::losses
