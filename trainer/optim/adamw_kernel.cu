#include "trainer/optim/adamw_kernel.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

namespace distill::optim {

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;
constexpr int64_t kMaxBlocks = 8192; // for more elements, each block loops

// Values that all elements share, in fp32 as in at::_fused_adamw_.
struct Factors {
  float lr;
  float beta1;
  float beta2;
  float eps;
  float weight_decay;
  float grad_scale;
  float step_size;
  float bias_correction2_sqrt;
};

__device__ __forceinline__ Factors factors_of(const AdamWArgs& args) {
  Factors f;
  f.lr = static_cast<float>(args.lr);
  f.beta1 = static_cast<float>(args.beta1);
  f.beta2 = static_cast<float>(args.beta2);
  f.eps = static_cast<float>(args.eps);
  f.weight_decay = static_cast<float>(args.weight_decay);
  f.grad_scale = args.grad_scale == nullptr ? 1.0F : *args.grad_scale;
  const float step = *args.step_count;
  f.step_size = f.lr / (1.0F - powf(f.beta1, step));
  f.bias_correction2_sqrt = sqrtf(1.0F - powf(f.beta2, step));
  return f;
}

__device__ __forceinline__ void update(
    const Factors& f, bool decays, float gradient, float& param, float& exp_avg, float& exp_avg_sq) {
  gradient /= f.grad_scale;
  if (decays) {
    param -= f.lr * f.weight_decay * param;
  }
  exp_avg = fmaf(f.beta1, exp_avg, fmaf(-f.beta1, gradient, gradient));
  const float square = gradient * gradient;
  exp_avg_sq = fmaf(f.beta2, exp_avg_sq, fmaf(-f.beta2, square, square));
  param -= f.step_size * exp_avg / (sqrtf(exp_avg_sq) / f.bias_correction2_sqrt + f.eps);
}

// kVector elements, or one, at `i`.
template <int V>
struct Elements {
  float value[V];

  __device__ __forceinline__ void load(const float* data, int64_t i) {
    if constexpr (V == 1) {
      value[0] = data[i];
    } else {
      const float4 loaded = *reinterpret_cast<const float4*>(data + i);
      value[0] = loaded.x;
      value[1] = loaded.y;
      value[2] = loaded.z;
      value[3] = loaded.w;
    }
  }
  __device__ __forceinline__ void store(float* data, int64_t i) const {
    if constexpr (V == 1) {
      data[i] = value[0];
    } else {
      *reinterpret_cast<float4*>(data + i) = make_float4(value[0], value[1], value[2], value[3]);
    }
  }
  __device__ __forceinline__ void store(__nv_bfloat16* data, int64_t i) const {
    if constexpr (V == 1) {
      data[i] = __float2bfloat16_rn(value[0]);
    } else {
      const __nv_bfloat162 pairs[2] = {
          __floats2bfloat162_rn(value[0], value[1]), __floats2bfloat162_rn(value[2], value[3])};
      uint2 words;
      memcpy(&words, pairs, sizeof(words));
      *reinterpret_cast<uint2*>(data + i) = words;
    }
  }
};

template <int V>
__device__ __forceinline__ void step_at(const AdamWArgs& args, const Factors& f, int64_t i) {
  Elements<V> param, gradient, exp_avg, exp_avg_sq;
  param.load(args.params, i);
  gradient.load(args.gradient, i);
  exp_avg.load(args.exp_avg, i);
  exp_avg_sq.load(args.exp_avg_sq, i);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    update(
        f, f.weight_decay != 0 && i + j >= args.decay_begin, gradient.value[j], param.value[j], exp_avg.value[j],
        exp_avg_sq.value[j]);
  }
  param.store(args.params, i);
  exp_avg.store(args.exp_avg, i);
  exp_avg_sq.store(args.exp_avg_sq, i);
  if (args.bf16_copy != nullptr) {
    param.store(static_cast<__nv_bfloat16*>(args.bf16_copy), i);
  }
}

template <int V>
__global__ __launch_bounds__(kThreads) void adamw(const __grid_constant__ AdamWArgs args) {
  if (args.found_inf != nullptr && *args.found_inf != 0) {
    return;
  }
  const Factors f = factors_of(args);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t vectors = args.n / V;
  for (int64_t v = first; v < vectors; v += step) {
    step_at<V>(args, f, v * V);
  }
  if constexpr (V > 1) {
    const int64_t rest = vectors * V + first;
    if (rest < args.n) {
      step_at<1>(args, f, rest);
    }
  }
}

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

} // namespace

const char* launch_adamw(const AdamWArgs& args, CUstream_st* stream) {
  if (args.n == 0) {
    return nullptr;
  }
  const bool wide = aligned(args.params, 16) && aligned(args.gradient, 16) && aligned(args.exp_avg, 16) &&
      aligned(args.exp_avg_sq, 16) && aligned(args.bf16_copy, 8);
  const int64_t per_block = kThreads * (wide ? kVector : 1);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>((args.n + per_block - 1) / per_block, kMaxBlocks));
  if (wide) {
    adamw<kVector><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    adamw<1><<<blocks, kThreads, 0, stream>>>(args);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace distill::optim
