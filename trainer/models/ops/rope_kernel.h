#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// Rotary position embedding of q and k in one launch, with RMSNorm over each head in front of it where the model has
// one. Of the R rotated elements of a head, the first ones, the pair of element i is element i + R/2. Arithmetic is
// fp32 (fp64 for fp64); the norm's output is not rounded before it is rotated.
namespace distill::models {

// Heads of one kind: strided [N, heads, D] views with contiguous D; strides count elements.
struct RopeHeads {
  const void* in;
  void* out; // may be `in`, for q and k alike
  int64_t heads;
  int64_t in_token_stride;
  int64_t in_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  const void* norm_weight; // [D]; launch_norm_rope only
  void* rstd; // [N, heads] contiguous fp32 (fp64 for fp64), written; launch_norm_rope only
};

struct RopeArgs {
  RopeHeads q;
  RopeHeads k; // heads may be 0
  const float* cos; // [N, R/2]
  const float* sin; // [N, R/2]
  const float* query_scale; // [N] or null: q is multiplied by it
  int64_t tokens; // N
  int64_t head_dim; // D, even
  int64_t rotary_dim; // R, even, at most D; 0 in launch_norm_rope only
  double eps; // launch_norm_rope only
  double norm_offset; // added to norm_weight
  bool inverse; // launch_rope only: the rotation backwards
  ElementType type;
};

const char* launch_rope(const RopeArgs& args, CUstream_st* stream);

const char* launch_norm_rope(const RopeArgs& args, CUstream_st* stream);

} // namespace distill::models
