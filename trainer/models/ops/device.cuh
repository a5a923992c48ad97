#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trainer/models/ops/kernel.h"

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

// The common parts of the elementwise kernels: 16-byte accesses, arithmetic types, sums over a group of lanes.
namespace distill::models {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kAccessBytes = 16;

// Arithmetic is fp32, or fp64 for fp64.
template <typename T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};
template <typename T>
using acc_type = typename Arithmetic<T>::type;

__device__ __forceinline__ float to_acc(float x) {
  return x;
}
__device__ __forceinline__ double to_acc(double x) {
  return x;
}
__device__ __forceinline__ float to_acc(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_acc(__half x) {
  return __half2float(x);
}

template <typename T>
__device__ __forceinline__ T from_acc(acc_type<T> x) {
  if constexpr (sizeof(T) == sizeof(acc_type<T>)) {
    return x;
  } else if constexpr (__is_same(T, __half)) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// V neighbouring elements, in their own dtype: an element, or 16 bytes (32 for angles of 8) moved at once.
template <typename T, int V>
struct Pack {
  T element[V];

  __device__ __forceinline__ acc_type<T> operator[](int i) const {
    return to_acc(element[i]);
  }
  __device__ __forceinline__ void set(int i, acc_type<T> value) {
    element[i] = from_acc<T>(value);
  }
};

// The address must be a multiple of 16 bytes, or of the pack's size where that is smaller.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> load_pack(const T* address) {
  Pack<T, V> pack;
  if constexpr (sizeof(pack) % sizeof(uint4) == 0) {
    uint4 words[sizeof(pack) / sizeof(uint4)];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(pack) / sizeof(uint4)); ++i) {
      words[i] = reinterpret_cast<const uint4*>(address)[i];
    }
    memcpy(&pack, words, sizeof(pack));
  } else if constexpr (sizeof(pack) == sizeof(uint2) && V > 1) {
    const uint2 words = *reinterpret_cast<const uint2*>(address);
    memcpy(&pack, &words, sizeof(pack));
  } else {
    static_assert(V == 1);
    pack.element[0] = *address;
  }
  return pack;
}

template <typename T, int V>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, V>& pack) {
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    uint4 words;
    memcpy(&words, &pack, sizeof(pack));
    *reinterpret_cast<uint4*>(address) = words;
  } else {
    static_assert(V == 1);
    *address = pack.element[0];
  }
}

// Makes the compiler forget the pack's unpacked values, which it would otherwise hold in twice the registers from one
// use to the next.
template <typename T, int V>
__device__ __forceinline__ void keep_packed(Pack<T, V>& pack) {
  if constexpr (sizeof(T) == 2 && sizeof(pack) == sizeof(uint4)) {
    uint4 words;
    memcpy(&words, &pack, sizeof(pack));
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    memcpy(&pack, &words, sizeof(pack));
  }
}

// Sum over groups of `width` neighbouring lanes (a power of two up to a warp), the same bits on every lane. The whole
// warp must call it.
template <typename T>
__device__ __forceinline__ T lane_sum(T value, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>{}) with the element's C++ type.
template <typename F>
void with_type(ElementType type, const F& f) {
  switch (type) {
    case ElementType::kFloat32:
      return f(TypeTag<float>{});
    case ElementType::kBFloat16:
      return f(TypeTag<__nv_bfloat16>{});
    case ElementType::kFloat16:
      return f(TypeTag<__half>{});
    case ElementType::kFloat64:
      return f(TypeTag<double>{});
  }
}

// The same with the number of elements that a thread reads at once, as an integral constant: those of one access where
// `wide`, otherwise one.
template <typename F>
void with_packs(ElementType type, bool wide, const F& f) {
  with_type(type, [&](auto tag) {
    if (wide) {
      f(tag, std::integral_constant<int, static_cast<int>(kAccessBytes / sizeof(typename decltype(tag)::type))>{});
    } else {
      f(tag, std::integral_constant<int, 1>{});
    }
  });
}

inline int element_bytes(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : (type == ElementType::kFloat32 ? 4 : 2);
}

// Tells whether `count` elements are a whole number of 16-byte accesses.
inline bool whole_packs(ElementType type, int64_t count) {
  return count * element_bytes(type) % kAccessBytes == 0;
}

// A null pointer is aligned.
template <typename... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % kAccessBytes == 0) && ...);
}

inline const char* launch_problem() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <typename T>
constexpr T ceil_div(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

} // namespace distill::models
