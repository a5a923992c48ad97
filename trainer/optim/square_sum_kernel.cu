#include "trainer/optim/square_sum_kernel.h"

#include "trainer/models/ops/device.cuh"

namespace distill::optim {
namespace {

constexpr int kThreads = 512;
constexpr int kValues = 4; // of one access

__device__ __forceinline__ double square(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

__device__ __forceinline__ double squares(float4 v) {
  return (square(v.x) + square(v.y)) + (square(v.z) + square(v.w));
}
__device__ __forceinline__ double squares(uint2 bf16) {
  const auto low = [](uint32_t two) { return square(__uint_as_float(two << 16)); };
  const auto high = [](uint32_t two) { return square(__uint_as_float(two & 0xFFFF0000U)); };
  return (low(bf16.x) + high(bf16.x)) + (low(bf16.y) + high(bf16.y));
}

__device__ __forceinline__ double square(__nv_bfloat16 value) {
  return square(__bfloat162float(value));
}

// Values of type T, and kValues of them as Pack.
template <typename T, typename Pack>
__global__ __launch_bounds__(kThreads) void square_sum(const __grid_constant__ SquareSumArgs args) {
  __shared__ double warps[kThreads / models::kWarp];
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const bool aligned = reinterpret_cast<uintptr_t>(args.values) % sizeof(Pack) == 0;
  const int64_t packs = aligned ? args.count / kValues : 0;
  double sum = 0;
  for (int64_t p = thread; p < packs; p += step) {
    sum += squares(static_cast<const Pack*>(args.values)[p]);
  }
  for (int64_t i = packs * kValues + thread; i < args.count; i += step) {
    sum += square(static_cast<const T*>(args.values)[i]);
  }
#pragma unroll
  for (int offset = models::kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(models::kAllLanes, sum, offset);
  }
  if (threadIdx.x % models::kWarp == 0) {
    warps[threadIdx.x / models::kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (const double warp : warps) {
      total += warp;
    }
    args.partials[blockIdx.x] = total;
  }
}

} // namespace

const char* launch_square_sum(const SquareSumArgs& args, CUstream_st* stream) {
  const auto parts = static_cast<unsigned>(kSquareSumParts);
  if (args.bf16) {
    square_sum<__nv_bfloat16, uint2><<<parts, kThreads, 0, stream>>>(args);
  } else {
    square_sum<float, float4><<<parts, kThreads, 0, stream>>>(args);
  }
  return models::launch_problem();
}

} // namespace distill::optim
