#pragma once

#include <cstdint>

#include "trainer/models/model_config.h"

namespace distill::metrics {

// Floating-point operations of the matrix products and of attention in one forward pass for one token; a multiply-add
// counts as two. Operations in float8 count half, since a device does twice as many of them in the same time:
// utilisation is then a share of the time that the device needs at its peak, whatever the precision.
struct TokenFlops {
  // 2 per matrix parameter that multiplies the token, 1 in float8: blocks with their adapters, and lm_head.
  double matrices = 0;
  // Of the backward pass: inputs' gradients as above; weights' gradients 2 per parameter, 1 where they are float8
  // products (ModelConfig::float8_weight_gradients), and none of frozen weights.
  double matrix_gradients = 0;
  double attention_full = 0; // 4 * heads * head_dim * seq_len a layer: the whole square of scores (PaLM's convention)
  double attention_causal = 0; // half of it: the scores that causal attention computes
  double recurrence = 0; // of delta rules: 6 * value heads * key_dim * value_dim a layer, whatever the length is

  TokenFlops operator+(const TokenFlops& other) const {
    return {
        matrices + other.matrices, matrix_gradients + other.matrix_gradients, attention_full + other.attention_full,
        attention_causal + other.attention_causal, recurrence + other.recurrence};
  }
  TokenFlops operator*(double factor) const {
    return {
        matrices * factor, matrix_gradients * factor, attention_full * factor, attention_causal * factor,
        recurrence * factor};
  }
};
TokenFlops token_flops(const models::ModelConfig& config, int64_t seq_len);

// Operations of a training step for one token of the student's: its forward pass, its backward pass (attention's and
// recurrences' at twice the forward pass), and the teacher's forward pass over as many tokens as the teacher reads for
// each of the student's (`teacher` counts them). Recomputation is not counted: these are model FLOPs, not hardware
// FLOPs.
double step_flops_per_token(const TokenFlops& student, const TokenFlops& teacher, bool causal);

} // namespace distill::metrics
