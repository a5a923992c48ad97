#pragma once

#include <cstdint>

#include "trainer/models/model_config.h"

namespace distill::metrics {

// Floating-point operations of the matrix products and of attention for one token (a multiply-add counts as two).
struct TokenFlops {
  double matrices = 0; // 2 per matrix parameter: blocks and lm_head
  double attention_full = 0; // 4 * layers * heads * head_dim * seq_len: the whole square (PaLM's convention)
  double attention_causal = 0; // half of it: what causal attention computes
};
TokenFlops token_flops(const models::ModelConfig& config, int64_t seq_len);

// One training step's operations per token: three passes of the student (forward, and twice that for the backward) and
// one of the teacher. Recomputation does not count: these are the model's operations, not the hardware's.
double step_flops_per_token(const TokenFlops& student, const TokenFlops& teacher, bool causal);

} // namespace distill::metrics
