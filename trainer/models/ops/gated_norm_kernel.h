#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// The norm of gated_norm.h on CUDA: a warp for each head of a token.
namespace distill::models {

inline constexpr int64_t kMaxGatedHead = 512; // elements of a head
inline constexpr int64_t kGatedNormTokens = 32; // tokens of a partial sum of the weight's gradient

struct GatedNormArgs {
  const void* x; // [N, A, D] contiguous
  const void* z; // [N, A, D], rows z_stride apart
  const void* weight; // [D]
  void* y; // forward: [N, A, D] contiguous
  const void* dy; // backward: [N, A, D] contiguous
  void* dx; // backward: [N, A, D] contiguous
  void* dz; // backward: [N, A, D], rows dz_stride apart
  void* parts; // backward: [ceil(N / kGatedNormTokens), A, D] of the arithmetic's type
  int64_t tokens; // N
  int64_t heads; // A
  int64_t dim; // D
  int64_t z_stride;
  int64_t dz_stride;
  double eps;
  ElementType type;
};

const char* launch_gated_norm_forward(const GatedNormArgs& args, CUstream_st* stream);
const char* launch_gated_norm_backward(const GatedNormArgs& args, CUstream_st* stream);

} // namespace distill::models
