#pragma once

#include <cmath>

#if defined(__CUDACC__)
#define DISTILL_DELTA_FUNCTION __host__ __device__ __forceinline__
#else
#define DISTILL_DELTA_FUNCTION inline
#endif

// The functions of one number that the ops of a gated delta rule share on the CPU and on CUDA. A value never depends on
// its place in a tensor, as it does in vectorised loops whose last elements take another path.
namespace distill::models {

template <typename acc_t>
DISTILL_DELTA_FUNCTION acc_t logistic(acc_t x) {
  return acc_t(1) / (acc_t(1) + std::exp(-x));
}

template <typename acc_t>
DISTILL_DELTA_FUNCTION acc_t silu(acc_t x) {
  return x * logistic(x);
}

template <typename acc_t>
DISTILL_DELTA_FUNCTION acc_t silu_slope(acc_t x) {
  const acc_t s = logistic(x);
  return s * (acc_t(1) + x * (acc_t(1) - s));
}

// log(1 + exp(x)); x itself from 20 on, as PyTorch has it.
template <typename acc_t>
DISTILL_DELTA_FUNCTION acc_t softplus(acc_t x) {
  return x > acc_t(20) ? x : std::log1p(std::exp(x));
}

} // namespace distill::models
