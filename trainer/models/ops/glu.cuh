#pragma once

#include "trainer/models/ops/device.cuh"
#include "trainer/models/ops/glu_kernel.h"

// A gated linear unit of one pack, for every kernel that computes it.
namespace distill::models {

// The quick exponential and quotient are off by a few units of fp32's last place: far below bf16's and fp16's rounding.
template <typename T>
__device__ __forceinline__ acc_type<T> sigmoid(acc_type<T> x) {
  using acc_t = acc_type<T>;
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0F, 1.0F + __expf(-x));
  } else {
    return acc_t(1) / (acc_t(1) + exp(-x));
  }
}

// Both functions of the gate are x * sigmoid(k(x)): silu has k(x) = x, and gelu's approximation with tanh has
// k(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = sigmoid(2 u).
constexpr double kGeluLinear = 1.5957691216057308; // 2 sqrt(2 / pi)
constexpr double kGeluCubic = 0.044715;

template <GluActivation kActivation, typename acc_t>
__device__ __forceinline__ acc_t sigmoid_argument(acc_t x) {
  if constexpr (kActivation == GluActivation::kGelu) {
    return acc_t(kGeluLinear) * (x + acc_t(kGeluCubic) * x * x * x);
  } else {
    return x;
  }
}

// x k'(x)
template <GluActivation kActivation, typename acc_t>
__device__ __forceinline__ acc_t argument_slope(acc_t x) {
  if constexpr (kActivation == GluActivation::kGelu) {
    return acc_t(kGeluLinear) * (x + acc_t(3 * kGeluCubic) * x * x * x);
  } else {
    return x;
  }
}

template <GluActivation kActivation, typename T, int V>
__device__ __forceinline__ Pack<T, V> glu_pack(const Pack<T, V>& gate, const Pack<T, V>& up) {
  Pack<T, V> act;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const acc_type<T> g = gate[i];
    act.set(i, g * sigmoid<T>(sigmoid_argument<kActivation>(g)) * up[i]);
  }
  return act;
}

} // namespace distill::models
