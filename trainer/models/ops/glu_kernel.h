#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// Gated linear units on CUDA (glu.h), one pass each way. N rows of `type`; columns [0, F) of gate_up are the gate, [F,
// 2F) the up projection. Arithmetic is fp32 (fp64 for fp64); only results are rounded.
namespace distill::models {

// The function of the gate; gelu is its approximation with tanh.
enum class GluActivation {
  kSilu,
  kGelu
};

struct GluArgs {
  const void* gate_up; // [N, 2F] contiguous
  void* act; // [N, F] contiguous: the activation
  int64_t rows; // N
  int64_t ffn; // F
  GluActivation activation;
  ElementType type;
};

const char* launch_glu_forward(const GluArgs& args, CUstream_st* stream);

struct GluBackwardArgs {
  const void* dact; // [N, F] contiguous
  const void* gate_up; // [N, 2F] contiguous
  void* dgate_up; // [N, 2F] contiguous; may be gate_up
  void* act; // [N, F] contiguous, the activation again; null: not computed; may be dact
  int64_t rows; // N
  int64_t ffn; // F
  GluActivation activation;
  ElementType type;
};

const char* launch_glu_backward(const GluBackwardArgs& args, CUstream_st* stream);

} // namespace distill::models
