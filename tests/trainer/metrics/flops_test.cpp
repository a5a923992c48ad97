#include "trainer/metrics/flops.h"

#include <gtest/gtest.h>

namespace distill::metrics {
namespace {

TEST(TokenFlops, Llama8B) {
  models::ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  const TokenFlops flops = token_flops(config, 4096);
  // 32 blocks of 218.1 M matrix parameters and an lm_head of 525.3 M, two operations each.
  EXPECT_NEAR(flops.matrices / 2, 32 * 218103808.0 + 525336576.0, 1);
  EXPECT_DOUBLE_EQ(flops.attention_full, 4.0 * 32 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(step_flops_per_token(flops, flops, true), 4 * (flops.matrices + flops.attention_causal));
}

} // namespace
} // namespace distill::metrics
