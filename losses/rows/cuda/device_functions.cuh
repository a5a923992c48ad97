#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "losses/rows/row_math.h"

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

// The CUDA row kernels share these device functions.
namespace distill::losses {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
// Logits below -kLargestLogit stand for a mask and count as -inf. Relative to a base beyond it, the rounding of the
// base in base 2 alone may be more than fp32's exponents hold.
constexpr float kLargestLogit = 0x1p29F;

template <typename T>
__device__ __forceinline__ T load_as(const void* data, int64_t index, ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return static_cast<T>(static_cast<const float*>(data)[index]);
    case ElementType::kBFloat16:
      return static_cast<T>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]));
    case ElementType::kFloat64:
      return static_cast<T>(static_cast<const double*>(data)[index]);
  }
  return T(0);
}

template <typename T>
__device__ __forceinline__ void store_as(void* data, int64_t index, ElementType type, T value) {
  switch (type) {
    case ElementType::kFloat32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case ElementType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16_rn(static_cast<float>(value));
      return;
    case ElementType::kFloat64:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      return;
  }
}

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = min(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = row_max(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// Returns the sums over the warp. xor shuffles add in one fixed order, so all lanes agree to the last bit.
template <typename T>
__device__ __forceinline__ RowSums<T> warp_merge(const RowSums<T>& mine) {
  return {warp_sum(mine.loss), warp_sum(mine.q_a),  warp_sum(mine.p_d),       warp_sum(mine.q_d), warp_sum(mine.mass),
          warp_sum(mine.q_lq), warp_sum(mine.p_lp), warp_sum(mine.below_max), warp_sum(mine.q)};
}

template <typename T>
__device__ __forceinline__ T label_slope(T label_logit, const RowConstants<T>& c) {
  return c.student_softcap > 0 ? softcap_slope(label_logit, c.student_softcap) : T(1);
}

// Returns null, or the message of the last launch's error.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace distill::losses
