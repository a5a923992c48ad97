// These functions make of a column's probabilities what is kept of it, and of that its gradient.
#pragma once

#include "losses/rows/cuda/cluster/mode_traits.h"
#include "losses/rows/cuda/cluster/softcap.cuh"
#include "losses/rows/cuda/pairs.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Returns d capped logit / d logit of the student's column, where the mode has softcaps.
template <Mode kMode>
__device__ __forceinline__ float slope_of(float capped_logit, const RowConstants<float>& c) {
  if constexpr (!kCaps<kMode>) {
    return 1.0F;
  } else if constexpr (kMode == Mode::kGeneral) { // there may be a bias that excludes the column
    return fmaxf(slope_at(capped_logit, c), 0.0F);
  } else {
    return slope_at(capped_logit, c);
  }
}

// Returns what is kept of a column's a for its gradient. Most divergences compute -a, and keep it at no further cost.
__device__ __forceinline__ float kept_a(float a) {
  return -a;
}

__device__ __forceinline__ float a_of(float kept) {
  return -kept;
}

// Returns what is kept of a column's q for its gradient: q, with the softcap's slope; or log2 q, from which q follows.
template <Mode kMode>
__device__ __forceinline__ float kept_q(const ColumnResult<float>& r, float slope) {
  if constexpr (kKeepsLog<kMode>) {
    return r.lq;
  } else if constexpr (kCaps<kMode>) {
    return r.q * slope;
  } else {
    return r.q;
  }
}

// Returns the gradient of a column without the label's part, where it needs the row's mean slope. `kept`: by kept_q.
template <Divergence kDivergence, Mode kMode>
__device__ __forceinline__ float gradient_of(
    float a, float kept, float mean, const SideStats<float>& student, const RowFactors<float>& f,
    const RowConstants<float>& c) {
  if constexpr (!kKeepsLog<kMode>) {
    return unit_gradient<kDivergence>(a, kept, mean, f);
  } else {
    // The sum kept + log2_sum is logit - max in base 2, over the temperature.
    const float q = row_exp2(kept);
    float unit_q = q;
    if (kMode != Mode::kGeneral || !c.unit_temperature) {
      unit_q = row_exp2(fmaf(kept, c.temperature, student.log2_sum * c.temperature - student.unit_log2_sum));
    }
    const float logit = fmaf(kept + student.log2_sum, c.temperature * kLn2<float>, student.max);
    const float slope = slope_of<kMode>(logit, c);
    return general_gradient<kDivergence>(a, q, unit_q, slope, mean, f);
  }
}

// Returns the gradient of a column without the label's part, where it needs no mean.
template <Divergence kDivergence, Mode kMode>
__device__ __forceinline__ float early_gradient(
    const ColumnResult<float>& r, float slope, const SideStats<float>& student, const RowFactors<float>& f,
    const RowConstants<float>& c) {
  if constexpr (kKeepsLog<kMode>) {
    return gradient_of<kDivergence, kMode>(r.a, r.lq, 0.0F, student, f, c);
  } else {
    const float g = unit_gradient<kDivergence>(r.a, r.q, 0.0F, f);
    return kCaps<kMode> ? g * slope : g;
  }
}

#endif

} // namespace distill::losses::cluster
