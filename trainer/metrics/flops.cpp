#include "trainer/metrics/flops.h"

namespace distill::metrics {

TokenFlops token_flops(const models::ModelConfig& config, int64_t seq_len) {
  const double hidden = config.hidden_size;
  const double query = static_cast<double>(config.num_heads) * config.head_dim;
  const double key_value = static_cast<double>(config.num_kv_heads) * config.head_dim;
  const double block = hidden * (2 * query + 2 * key_value) + 3 * hidden * config.intermediate_size;
  TokenFlops flops;
  flops.matrices = 2 * (config.num_layers * block + config.vocab_size * hidden);
  flops.attention_full = 4.0 * config.num_layers * query * seq_len;
  flops.attention_causal = flops.attention_full / 2;
  return flops;
}

double step_flops_per_token(const TokenFlops& student, const TokenFlops& teacher, bool causal) {
  const auto total = [causal](const TokenFlops& f) {
    return f.matrices + (causal ? f.attention_causal : f.attention_full);
  };
  return 3 * total(student) + total(teacher);
}

} // namespace distill::metrics
