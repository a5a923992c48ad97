#pragma once

#include <string>

#include "trainer/models/model_config.h"
#include "trainer/plan/machine.h"

namespace distill::plan {

// Seconds of a layer's attention without its projections, in bf16 on CUDA.
struct AttentionTime {
  double forward = 0;
  double backward = 0;
};

// Of `tokens` in sequences of `seq_len`. Fused kernels run at the machine's speeds. Matrix products
// (models::has_fused_attention) run at that of other products, and the scores between them are written and read.
AttentionTime attention_time(const models::AttentionSpec& spec, const Machine& machine, double tokens, int64_t seq_len);

// Of a layer with a delta rule: convolution, gates, rule and gated norm, without its projections. Elements have
// `element` bytes.
AttentionTime delta_time(const models::DeltaSpec& spec, const Machine& machine, double tokens, double element);

// Says of which layers attention has no fused kernel, why, and what that costs; empty: of none.
std::string slow_attention_text(const models::ModelConfig& config, const Machine& machine, int64_t seq_len);

} // namespace distill::plan
