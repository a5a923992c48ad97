#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// SwiGLU on CUDA, one pass each way. N rows of `type`; columns [0, F) of gate_up are the gate, [F, 2F) the up
// projection. Arithmetic is fp32 (fp64 for fp64); only results are rounded.
namespace distill::models {

struct SwigluArgs {
  const void* gate_up; // [N, 2F] contiguous
  void* act; // [N, F] contiguous: silu(gate) * up
  int64_t rows; // N
  int64_t ffn; // F
  ElementType type;
};

const char* launch_swiglu_forward(const SwigluArgs& args, CUstream_st* stream);

struct SwigluBackwardArgs {
  const void* dact; // [N, F] contiguous
  const void* gate_up; // [N, 2F] contiguous
  void* dgate_up; // [N, 2F] contiguous; may be gate_up
  void* act; // [N, F] contiguous, silu(gate) * up again; null: not computed; may be dact
  int64_t rows; // N
  int64_t ffn; // F
  ElementType type;
};

const char* launch_swiglu_backward(const SwigluBackwardArgs& args, CUstream_st* stream);

} // namespace distill::models
