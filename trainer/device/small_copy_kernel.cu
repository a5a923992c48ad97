#include "trainer/device/small_copy_kernel.h"

#include <cuda_runtime.h>

#include <algorithm>

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

namespace distill::device {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16; // host memory needs few threads

template <typename T>
__global__ __launch_bounds__(kThreads) void small_copy(T* to, const T* from, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    to[i] = from[i];
  }
}

template <typename T>
void launch(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMaxBlocks));
  small_copy<T><<<blocks, kThreads, 0, stream>>>(static_cast<T*>(to), static_cast<const T*>(from), count);
}

} // namespace

const char* launch_small_copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) {
  const auto together =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(bytes);
  together % sizeof(uint4) == 0 ? launch<uint4>(to, from, bytes, stream) : launch<uint8_t>(to, from, bytes, stream);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace distill::device
