#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// The gated delta rule of delta_rule.h on CUDA, token by token with fp32 states in registers (fp64 for fp64), for the
// dtypes, sizes and GPUs that delta_chunk_kernel.h does not serve. Names and letters as in delta_rule.h; Hk key heads.
// The segments are those of cu_seqlens.
namespace distill::models {

inline constexpr int64_t kMaxDeltaDim = 128; // of keys and of values

struct DeltaRuleArgs {
  const void* qkv; // [N, C] contiguous
  const void* decay; // [N, A], of the arithmetic's type, as all that has no `type` below
  const void* beta; // [N, A]
  const int32_t* cu_seqlens; // [segments + 1]
  void* norms; // scratch [N, Hk, 3]: Dk^-0.5 / length of q, 1 / length of k, product of the normalised two
  void* out; // forward: [N, A, Dv] of `type`
  void* written; // [N, A, Dv] of `type`; written by the forward pass, read by the backward pass
  const void* dout; // backward: [N, A, Dv] of `type`
  void* dqkv; // backward: [N, C] of `type`
  void* ddecay; // backward: [N, A]
  void* dbeta; // backward: [N, A]
  void* carried; // backward, scratch: [N, A, Dv]: C^T k of delta_rule_cpu.cpp
  void* dq; // backward, scratch: [N, A, Dk]: of the normalised q, and k
  void* dk;
  int64_t tokens; // N
  int64_t segments;
  int64_t key_heads; // Hk
  int64_t value_heads; // A
  int64_t key_dim; // Dk
  int64_t value_dim; // Dv
  ElementType type;
};

const char* launch_delta_rule_forward(const DeltaRuleArgs& args, CUstream_st* stream);
const char* launch_delta_rule_backward(const DeltaRuleArgs& args, CUstream_st* stream);

} // namespace distill::models
