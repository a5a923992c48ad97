#include "trainer/optim/adamw_kernel.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

namespace distill::optim {

namespace {

constexpr int kVector = 4;

// Alone on the device: small blocks everywhere, which finish and are replaced.
constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192; // beyond, blocks take several turns

// Beside others: each thread has several vectors on their way, so that few multiprocessors move many bytes, and one
// block takes most of a multiprocessor's registers, which a product's blocks want whole anyway. About 73 instructions
// an element then bound what a multiprocessor moves, at 60 to 90 GB/s by count.
constexpr int kThreadsBeside = 512;
constexpr int kVectorsBeside = 4;

// What all elements share, in fp32 as at::_fused_adamw_ has it.
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
  if (f.grad_scale != 1) { // nothing was clipped: a fifth of the operations less
    gradient /= f.grad_scale;
  }
  if (decays) {
    param -= f.lr * f.weight_decay * param;
  }
  exp_avg = fmaf(f.beta1, exp_avg, fmaf(-f.beta1, gradient, gradient));
  const float square = gradient * gradient;
  exp_avg_sq = fmaf(f.beta2, exp_avg_sq, fmaf(-f.beta2, square, square));
  param -= f.step_size * exp_avg / (sqrtf(exp_avg_sq) / f.bias_correction2_sqrt + f.eps);
}

// kVector elements, or one, at `i`. Streams: the device's cache is to keep others' bytes rather than these. (Beside
// that, where a thread has several vectors, the compiler takes plain wide stores apart.)
template <int V, bool Streams>
struct Elements {
  float value[V];

  __device__ __forceinline__ void load(const float* data, int64_t i) {
    if constexpr (V == 1) {
      value[0] = Streams ? __ldcs(data + i) : data[i];
    } else {
      const auto* wide = reinterpret_cast<const float4*>(data + i);
      const float4 loaded = Streams ? __ldcs(wide) : *wide;
      value[0] = loaded.x;
      value[1] = loaded.y;
      value[2] = loaded.z;
      value[3] = loaded.w;
    }
  }
  __device__ __forceinline__ void store(float* data, int64_t i) const {
    if constexpr (V == 1) {
      put(data + i, value[0]);
    } else {
      put(reinterpret_cast<float4*>(data + i), make_float4(value[0], value[1], value[2], value[3]));
    }
  }
  __device__ __forceinline__ void store(__nv_bfloat16* data, int64_t i) const {
    if constexpr (V == 1) {
      put(data + i, __float2bfloat16_rn(value[0]));
    } else {
      const __nv_bfloat162 pairs[2] = {
          __floats2bfloat162_rn(value[0], value[1]), __floats2bfloat162_rn(value[2], value[3])};
      uint2 words;
      memcpy(&words, pairs, sizeof(words));
      put(reinterpret_cast<uint2*>(data + i), words);
    }
  }

 private:
  template <typename T>
  __device__ __forceinline__ static void put(T* place, const T& stored) {
    if constexpr (Streams) {
      __stcs(place, stored);
    } else {
      *place = stored;
    }
  }
};

// U vectors of V elements, `stride` elements apart: all are loaded before the first one is written.
template <int V, int U, bool Streams>
__device__ __forceinline__ void step_at(const AdamWArgs& args, const Factors& f, int64_t begin, int64_t stride) {
  Elements<V, Streams> param[U], gradient[U], exp_avg[U], exp_avg_sq[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t i = begin + u * stride;
    param[u].load(args.params, i);
    gradient[u].load(args.gradient, i);
    exp_avg[u].load(args.exp_avg, i);
    exp_avg_sq[u].load(args.exp_avg_sq, i);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int64_t i = begin + u * stride;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      update(
          f, f.weight_decay != 0 && i + j >= args.decay_begin, gradient[u].value[j], param[u].value[j],
          exp_avg[u].value[j], exp_avg_sq[u].value[j]);
    }
    param[u].store(args.params, i);
    exp_avg[u].store(args.exp_avg, i);
    exp_avg_sq[u].store(args.exp_avg_sq, i);
    if (args.bf16_copy != nullptr) {
      param[u].store(static_cast<__nv_bfloat16*>(args.bf16_copy), i);
    }
  }
}

template <int V, int U, int Threads>
__global__ __launch_bounds__(Threads) void adamw(const __grid_constant__ AdamWArgs args) {
  if (args.found_inf != nullptr && *args.found_inf != 0) {
    return;
  }
  const Factors f = factors_of(args);
  constexpr bool kStreams = U > 1; // beside others
  const int64_t first = static_cast<int64_t>(blockIdx.x) * Threads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * Threads;
  const int64_t vectors = args.n / V;
  int64_t v = first;
  for (; v + (U - 1) * step < vectors; v += U * step) {
    step_at<V, U, kStreams>(args, f, v * V, step * V);
  }
  if constexpr (U > 1) {
    for (; v < vectors; v += step) {
      step_at<V, 1, kStreams>(args, f, v * V, 0);
    }
  }
  if constexpr (V > 1) {
    const int64_t rest = vectors * V + first;
    if (rest < args.n) {
      step_at<1, 1, kStreams>(args, f, rest, 0);
    }
  }
}

template <int V, int U, int Threads>
void launch(const AdamWArgs& args, int64_t max_blocks, cudaStream_t stream) {
  constexpr int64_t kPerBlock = int64_t{V} * U * Threads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((args.n + kPerBlock - 1) / kPerBlock, max_blocks));
  adamw<V, U, Threads><<<blocks, Threads, 0, stream>>>(args);
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
  if (args.ctas > 0) {
    wide ? launch<kVector, kVectorsBeside, kThreadsBeside>(args, args.ctas, stream)
         : launch<1, kVectorsBeside, kThreadsBeside>(args, args.ctas, stream);
  } else {
    wide ? launch<kVector, 1, kThreads>(args, kMaxBlocks, stream) : launch<1, 1, kThreads>(args, kMaxBlocks, stream);
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace distill::optim
