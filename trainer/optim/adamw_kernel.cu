#include "trainer/optim/adamw_kernel.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "trainer/models/ops/device.cuh"
#include "trainer/optim/adamw_math.h"

static_assert(__cplusplus >= 202002L, "CUDA sources are C++20");

namespace distill::optim {

namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;
constexpr int64_t kMaxBlocks = 8192; // for more elements, each block loops

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

// V elements that are stored as float, or as uint16_t, the bits of bf16.
template <int V>
__device__ __forceinline__ void load_wide(Elements<V>& values, const float* data, int64_t i) {
  values.load(data, i);
}
template <int V>
__device__ __forceinline__ void load_wide(Elements<V>& values, const uint16_t* data, int64_t i) {
  uint16_t bits[V];
  if constexpr (V == 1) {
    bits[0] = data[i];
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(data + i);
    memcpy(bits, &words, sizeof(words));
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    values.value[j] = widen(bits[j]);
  }
}

template <int V>
__device__ __forceinline__ void store_rounded(
    const Elements<V>& values, const uint32_t* words, int shift, uint16_t* data, int64_t i) {
  uint16_t bits[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    bits[j] = round_stochastically(values.value[j], words[j] >> shift & 0xFFFFU);
  }
  if constexpr (V == 1) {
    data[i] = bits[0];
  } else {
    uint2 packed;
    memcpy(&packed, bits, sizeof(packed));
    *reinterpret_cast<uint2*>(data + i) = packed;
  }
}

template <int V, typename Moment, typename Gradient>
__device__ __forceinline__ void step_at(const AdamWArgs& args, const AdamWFactors& f, int64_t i) {
  Elements<V> param, gradient, exp_avg, exp_avg_sq;
  auto* const first_moments = static_cast<Moment*>(args.exp_avg);
  auto* const second_moments = static_cast<Moment*>(args.exp_avg_sq);
  param.load(args.params, i);
  load_wide(gradient, static_cast<const Gradient*>(args.gradient), i);
  load_wide(exp_avg, first_moments, i);
  load_wide(exp_avg_sq, second_moments, i);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    update_element(
        f, f.decay != 0 && i + j >= args.decay_begin, gradient.value[j], param.value[j], exp_avg.value[j],
        exp_avg_sq.value[j]);
  }
  param.store(args.params, i);
  if constexpr (std::is_same_v<Moment, float>) {
    exp_avg.store(first_moments, i);
    exp_avg_sq.store(second_moments, i);
  } else {
    const int64_t element = args.first + i;
    uint32_t words[kRoundingGroup];
    models::rounding_words(f.step, args.unit, kMomentsDraw, element / kRoundingGroup, words);
    if constexpr (V == 1) {
      words[0] = words[element % kRoundingGroup];
    }
    store_rounded(exp_avg, words, 0, first_moments, i);
    store_rounded(exp_avg_sq, words, 16, second_moments, i);
  }
  if (args.bf16_copy != nullptr) {
    param.store(static_cast<__nv_bfloat16*>(args.bf16_copy), i);
  }
}

__global__ void adamw_factors(const __grid_constant__ AdamWStep step) {
  *step.factors = factors_of(step);
}

template <int V, typename Moment, typename Gradient>
__global__ __launch_bounds__(kThreads) void adamw(const __grid_constant__ AdamWArgs args) {
  const AdamWFactors f = *args.factors;
  if (f.skipped != 0) {
    return;
  }
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t vectors = args.n / V;
  for (int64_t v = first; v < vectors; v += step) {
    step_at<V, Moment, Gradient>(args, f, v * V);
  }
  if constexpr (V > 1) {
    const int64_t rest = vectors * V + first;
    if (rest < args.n) {
      step_at<1, Moment, Gradient>(args, f, rest);
    }
  }
}

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <typename Moment, typename Gradient>
void launch(const AdamWArgs& args, CUstream_st* stream) {
  constexpr uintptr_t kMoments = sizeof(Moment) * kVector, kGradients = sizeof(Gradient) * kVector;
  static_assert(kVector == kRoundingGroup);
  const bool wide = args.first % kRoundingGroup == 0 && aligned(args.params, 16) &&
      aligned(args.gradient, kGradients) && aligned(args.exp_avg, kMoments) && aligned(args.exp_avg_sq, kMoments) &&
      aligned(args.bf16_copy, 8);
  const int64_t per_block = kThreads * (wide ? kVector : 1);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>((args.n + per_block - 1) / per_block, kMaxBlocks));
  if (wide) {
    adamw<kVector, Moment, Gradient><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    adamw<1, Moment, Gradient><<<blocks, kThreads, 0, stream>>>(args);
  }
}

template <typename Moment>
void launch_with_moments(const AdamWArgs& args, CUstream_st* stream) {
  args.bf16_gradient ? launch<Moment, uint16_t>(args, stream) : launch<Moment, float>(args, stream);
}

} // namespace

const char* launch_adamw_factors(const AdamWStep& step, CUstream_st* stream) {
  adamw_factors<<<1, 1, 0, stream>>>(step);
  return models::launch_problem();
}

const char* launch_adamw(const AdamWArgs& args, CUstream_st* stream) {
  if (args.n == 0) {
    return nullptr;
  }
  args.bf16_moments ? launch_with_moments<uint16_t>(args, stream) : launch_with_moments<float>(args, stream);
  return models::launch_problem();
}

} // namespace distill::optim
