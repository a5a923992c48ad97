// The maximum and the normalising sums of the columns that a thread of the streaming row kernel has.
#pragma once

#include <limits>

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses::streaming {

// body(k) for each index of the array, whose values are not read.
template <typename T, int kCount, typename Body>
__device__ __forceinline__ void for_columns(const T (&)[kCount], const Body& body) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    body(k);
  }
}

// One side's sums, relative to a base that changes only where the maximum is far above it. The base is one of the
// logits, so that the sums are at least 1.
template <typename T>
struct RunningSums {
  T max = -std::numeric_limits<T>::infinity();
  T base = T(-1e30); // below all finite logits, and no infinity, whose difference from -inf would be NaN
  T sum = 0;
  T unit_sum = 0; // at T = 1, where the temperature is another

  // far: see far_above().
  template <bool kUnitTemperature, int kCount>
  __device__ __forceinline__ void add(const T (&z)[kCount], T far, const RowConstants<T>& c) {
    const bool two_sums = !kUnitTemperature && !c.unit_temperature;
    for_columns(z, [&](int k) { max = row_max(max, z[k]); });
    if (max > base + far) {
      sum = scaled_to(sum, base, max, c.to_log2);
      if (two_sums) {
        unit_sum = scaled_to(unit_sum, base, max, kLog2E<T>);
      }
      base = max;
    }
    for_columns(z, [&](int k) { sum += row_exp2((z[k] - base) * c.to_log2); });
    if (two_sums) {
      for_columns(z, [&](int k) { unit_sum += row_exp2((z[k] - base) * kLog2E<T>); });
    }
  }

  // Relative to the maximum.
  __device__ __forceinline__ SideSums<T> side_sums(const RowConstants<T>& c) const {
    if (max == -std::numeric_limits<T>::infinity()) { // the sums are 0, or NaN where a logit is NaN
      return {max, sum, unit_sum};
    }
    return {max, scaled_to(sum, base, max, c.to_log2), scaled_to(unit_sum, base, max, kLog2E<T>)};
  }
};

// How far above the base a logit may be: 2^96 for it in a sum leaves room for the sum of 2^30 columns.
template <typename T>
__device__ __forceinline__ T far_above(const RowConstants<T>& c) {
  return T(96) / row_max(c.to_log2, kLog2E<T>);
}

} // namespace distill::losses::streaming
