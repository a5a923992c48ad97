#pragma once

#include <cstdint>

#include "trainer/models/model_config.h"

namespace distill::metrics {

// Floating-point operations of the matrix products and of attention in one forward pass for one token; a multiply-add
// counts as two.
struct TokenFlops {
  double matrices = 0; // 2 per matrix parameter: blocks and lm_head
  double attention_full = 0; // 4 * layers * heads * head_dim * seq_len: the whole square of scores (PaLM's convention)
  double attention_causal = 0; // half of it: the scores that causal attention computes
};
TokenFlops token_flops(const models::ModelConfig& config, int64_t seq_len);

// Operations of a training step for one token: the student's forward pass, its backward pass at twice that, and the
// teacher's forward pass. Recomputation is not counted: these are model FLOPs, not hardware FLOPs.
double step_flops_per_token(const TokenFlops& student, const TokenFlops& teacher, bool causal);

} // namespace distill::metrics
