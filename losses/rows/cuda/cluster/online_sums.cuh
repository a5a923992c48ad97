#pragma once

#include "losses/rows/cuda/cluster/mode_traits.h"
#include "losses/rows/cuda/cluster/tiles.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ float largest_of(const float (&z)[kVector]) {
  return fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
}

// One side's sums of the online softmax in a thread are relative to the maximum of its warp's first tile. If a logit
// is so far above that maximum that the sums may overflow, the warp sums its columns again relative to their maximum.
struct OnlineSums {
  static constexpr float kRoom = 80; // powers of two

  float max = -INFINITY; // of the logits; not with kKeepsExponentials
  float base = 0;
  float scaled = 0; // base * to_log2
  float sum = 0;
  float unit_sum = 0;

  __device__ __forceinline__ void begin(const float (&z)[kVector], const RowConstants<float>& c) {
    begin(lanes_max(largest_of(z)), c);
  }

  // Sets the base. new_base: the same in all lanes.
  __device__ __forceinline__ void begin(float new_base, const RowConstants<float>& c) {
    base = fmaxf(new_base, -kLargestLogit);
    scaled = base * c.to_log2;
    sum = 0;
    unit_sum = 0;
  }

  // Adds a tile. x: logits in base 2, relative to the base; e = 2^x.
  __device__ __forceinline__ void add_exponentials(const float (&x)[kVector], float (&e)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      e[j] = row_exp2(x[j]);
    }
    sum += (e[0] + e[1]) + (e[2] + e[3]);
  }

  template <Mode kMode>
  __device__ __forceinline__ void add(const float (&z)[kVector], const RowConstants<float>& c) {
    max = fmaxf(max, largest_of(z));
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum += row_exp2(kSubtractsFirst<kMode> ? (z[j] - base) * c.to_log2 : z[j] * c.to_log2 - scaled);
    }
    if (kScales<kMode> && (kMode != Mode::kGeneral || !c.unit_temperature)) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        unit_sum += row_exp2((z[j] - base) * kLog2E<float>);
      }
    }
  }
};

#endif

} // namespace distill::losses::cluster
