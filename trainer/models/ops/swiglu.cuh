#pragma once

#include "trainer/models/ops/device.cuh"

// SwiGLU of one pack, for every kernel that computes it.
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

// silu(gate) * up.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> swiglu_pack(const Pack<T, V>& gate, const Pack<T, V>& up) {
  Pack<T, V> act;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const acc_type<T> g = gate[i];
    act.set(i, g * sigmoid<T>(g) * up[i]);
  }
  return act;
}

} // namespace distill::models
