#include "trainer/metrics/flops.h"

#include "trainer/models/layout.h"

namespace distill::metrics {

TokenFlops token_flops(const models::ModelConfig& config, int64_t seq_len) {
  const double hidden = config.hidden_size;
  TokenFlops flops;
  const auto& adapter = config.adapter;
  flops.matrices = 2 * config.vocab_size * hidden;
  const bool frozen_head =
      adapter && !adapter->trains_whole(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  flops.matrix_gradients = (frozen_head ? 1 : 2) * flops.matrices;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(config, block).params) {
      if (param.is_matrix) {
        const auto elements = static_cast<double>(param.active_numel());
        const bool in_float8 = config.float8.contains(block, param.name);
        const double forward = (in_float8 ? 1 : 2) * elements;
        const double weight_gradient = (in_float8 && config.float8_weight_gradients ? 1 : 2) * elements;
        flops.matrices += forward;
        flops.matrix_gradients += forward + (adapter ? 0 : weight_gradient);
      }
    }
    const auto adapters = static_cast<double>(models::adapter_numel(config, block));
    flops.matrices += 2 * adapters;
    flops.matrix_gradients += 4 * adapters;
    const models::LayerKind& kind = config.layer(block);
    if (kind.delta) {
      flops.recurrence += kind.delta->rule_flops();
    } else {
      flops.attention_causal +=
          4.0 * static_cast<double>(kind.attention.query_width()) * kind.attention.attended_tokens(seq_len);
    }
  }
  flops.attention_full = 2 * flops.attention_causal;
  return flops;
}

double step_flops_per_token(const TokenFlops& student, const TokenFlops& teacher, bool causal) {
  const auto attention = [causal](const TokenFlops& f) {
    return (causal ? f.attention_causal : f.attention_full) + f.recurrence;
  };
  return student.matrices + student.matrix_gradients + 3 * attention(student) + teacher.matrices + attention(teacher);
}

} // namespace distill::metrics
