#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// The convolution of short_conv.h on CUDA. N rows of `type`; arithmetic is fp32 (fp64 for fp64).
namespace distill::models {

inline constexpr int64_t kMaxConvWidth = 8;
inline constexpr int64_t kConvTile = 32; // tokens of a partial sum of the weight's gradient

struct ShortConvArgs {
  const void* x; // [N, C], rows x_stride apart
  const void* weight; // [C, W] contiguous
  const int64_t* positions; // [N]: of each token in its segment
  void* y; // forward: [N, C] contiguous
  const void* dy; // backward: [N, C] contiguous
  void* dx; // backward: [N, C], rows dx_stride apart
  void* parts; // backward: [ceil(N / kConvTile), C, W] of the arithmetic's type; null: not computed
  int64_t tokens; // N
  int64_t channels; // C
  int64_t width; // W
  int64_t x_stride;
  int64_t dx_stride;
  ElementType type;
};

const char* launch_short_conv_forward(const ShortConvArgs& args, CUstream_st* stream);
const char* launch_short_conv_backward(const ShortConvArgs& args, CUstream_st* stream);

} // namespace distill::models
