// These functions compute the probabilities of columns of both sides.
#pragma once

#include "losses/rows/cuda/instructions.cuh"

namespace distill::losses {

// Returns the smallest of the values from kBegin to before kEnd.
template <int kBegin, int kEnd, int kCount>
__device__ __forceinline__ float smallest_of(const float (&values)[kCount]) {
  if constexpr (kEnd - kBegin == 1) {
    return values[kBegin];
  } else {
    constexpr int kMiddle = (kBegin + kEnd) / 2;
    return fminf(smallest_of<kBegin, kMiddle>(values), smallest_of<kMiddle, kEnd>(values));
  }
}

// Computes the pairs of a thread's columns, with two exponentials each where q is not too small for that.
template <int kCount>
__device__ __forceinline__ void pairs_from_ratio(
    const float (&lp)[kCount], const float (&lq)[kCount], ColumnPair<float> (&pairs)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float d = lp[j] - lq[j];
    const float q = row_exp2(lq[j]);
    const float r = row_exp2(fminf(d, kMaxLogRatio<float>));
    pairs[j] = {d, q * r, q, r};
  }
  constexpr float kTooSmall = -120; // log2 q; below 2^-126 it is 0
  if (smallest_of<0, kCount>(lq) < kTooSmall) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      pairs[j].p = exp2_where_it_stands(lp[j]);
    }
  }
}

} // namespace distill::losses
