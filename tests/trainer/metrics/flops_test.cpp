#include "trainer/metrics/flops.h"

#include <gtest/gtest.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/models/layout.h"

namespace distill::metrics {
namespace {

TEST(TokenFlops, Llama8B) {
  const models::ModelConfig config = models::llama_like(
      {.vocab = 128256, .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128});
  const TokenFlops flops = token_flops(config, 4096);
  // 32 blocks of 218.1 M matrix parameters and an lm_head of 525.3 M, two operations each.
  EXPECT_NEAR(flops.matrices / 2, 32 * 218103808.0 + 525336576.0, 1);
  EXPECT_DOUBLE_EQ(flops.attention_full, 4.0 * 32 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(step_flops_per_token(flops, flops, true), 4 * (flops.matrices + flops.attention_causal));
  // A teacher that reads twice as many tokens.
  EXPECT_DOUBLE_EQ(
      step_flops_per_token(flops, token_flops(config, 8192) * 2, true),
      5 * flops.matrices + (3 + 4) * flops.attention_causal);
}

TEST(FlopsTest, AFloat8OperationCountsHalf) {
  models::ModelConfig config = models::llama_like({.vocab = 100, .hidden = 16, .ffn = 32});
  const double plain = token_flops(config, 64).matrices;
  config.float8 = *models::Float8Products::all_but({"0.down"}, models::block_products(config));
  const double blocks = plain - 2.0 * 100 * 16, down = 2.0 * 32 * 16;
  const TokenFlops flops = token_flops(config, 64);
  EXPECT_DOUBLE_EQ(flops.matrices, plain - (blocks - down) / 2);
  // In the backward pass the gradients of inputs count half, those of weights do not.
  EXPECT_DOUBLE_EQ(flops.matrix_gradients, 2 * plain - (blocks - down) / 2);
  EXPECT_DOUBLE_EQ(
      step_flops_per_token(flops, {}, /*causal=*/true), 3 * plain - (blocks - down) + 3 * flops.attention_causal);
  config.float8_weight_gradients = true; // of the same products
  EXPECT_DOUBLE_EQ(token_flops(config, 64).matrix_gradients, 2 * plain - (blocks - down));
  EXPECT_DOUBLE_EQ(token_flops(config, 64).matrices, flops.matrices);
}

TEST(TokenFlops, FrozenWeightsHaveNoGradients) {
  models::ModelConfig config = models::llama_like({.vocab = 100, .hidden = 16, .ffn = 32});
  const double plain = token_flops(config, 64).matrices, head = 2.0 * 100 * 16;
  models::AdapterSpec adapter;
  adapter.modules.push_back({0, "down", "model.layers.0.mlp.down_proj", 0, 16, /*rank=*/3, 1});
  config.adapter = adapter;
  const double low = 2.0 * 3 * (16 + 32);
  TokenFlops flops = token_flops(config, 64);
  EXPECT_DOUBLE_EQ(flops.matrices, plain + low);
  EXPECT_DOUBLE_EQ(flops.matrix_gradients, plain + 2 * low);
  config.adapter->whole = {"lm_head.weight"};
  flops = token_flops(config, 64);
  EXPECT_DOUBLE_EQ(flops.matrix_gradients, plain + head + 2 * low);
}

TEST(TokenFlops, OfExpertsCountsThoseThatATokenVisits) {
  models::LayerKind kind;
  kind.mlp.experts = models::ExpertsSpec{.count = 128, .per_token = 8};
  // Qwen3-30B-A3B
  const models::ModelConfig config = models::llama_like(
      {.vocab = 151936, .hidden = 2048, .ffn = 768, .layers = 48, .heads = 32, .kv_heads = 4, .head_dim = 128}, kind);
  const double attention = 2048.0 * (32 + 2 * 4 + 32) * 128, experts = 8 * 3 * 2048.0 * 768, router = 128 * 2048.0;
  const TokenFlops flops = token_flops(config, 4096);
  EXPECT_NEAR(flops.matrices / 2, 48 * (attention + router + experts) + 151936 * 2048.0, 1);
  EXPECT_DOUBLE_EQ(flops.matrix_gradients, 2 * flops.matrices);
}

TEST(TokenFlops, ADeltaRuleCostsTheSameAtEveryLength) {
  models::LayerKind attention, delta;
  attention.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  attention.mlp.ffn = delta.mlp.ffn = 32;
  delta.delta = models::DeltaSpec{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16};
  models::ModelConfig config = models::llama_like({.vocab = 100, .hidden = 16});
  config.set_layers({delta, delta, attention});
  const TokenFlops flops = token_flops(config, 64), longer = token_flops(config, 128);
  EXPECT_DOUBLE_EQ(flops.recurrence, 2 * 6.0 * 4 * 8 * 16);
  EXPECT_DOUBLE_EQ(longer.recurrence, flops.recurrence);
  EXPECT_DOUBLE_EQ(flops.attention_full, 4.0 * 64 * 64); // of the other layer alone
  const double projections = 16.0 * ((32 + 64 + 64) + 64 + 2 * 4) + (32 + 64) * 4, mlp = 3.0 * 16 * 32;
  EXPECT_DOUBLE_EQ(flops.matrices / 2, 2 * (projections + mlp) + 16.0 * 4 * 64 + mlp + 100 * 16);
  EXPECT_DOUBLE_EQ(
      step_flops_per_token(flops, {}, /*causal=*/true),
      3 * (flops.matrices + flops.attention_causal + flops.recurrence));
}

} // namespace
} // namespace distill::metrics
