#include "trainer/hf/experts_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/config_cases.h"

namespace distill::hf {
namespace {

using ::testing::HasSubstr;

const char* const kExperts = R"("model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts": 16,
  "num_experts_per_tok": 4, "moe_intermediate_size": 768, "norm_topk_prob": true)";

std::vector<bool> layers_with_experts(const models::ModelConfig& config) {
  std::vector<bool> found;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    found.push_back(config.layer(layer).mlp.experts.has_value());
    EXPECT_EQ(config.layer(layer).mlp.ffn, found.back() ? 768 : 14336);
  }
  return found;
}

TEST(ExpertsKeysTest, ReadsExperts) {
  const auto with = [](const std::string& more) { return parse_with(absl::StrCat("{", kExperts, more, "}")); };
  const auto config = with("").value();
  EXPECT_EQ(config.kinds.size(), 1U);
  EXPECT_EQ(config.kinds[0].mlp.experts, (models::ExpertsSpec{.count = 16, .per_token = 4, .normalise = true}));
  EXPECT_EQ(config.kinds[0].mlp.width(), 4 * 768);
  EXPECT_TRUE(config.kinds[0].attention.qk_norm);
  EXPECT_EQ(config.router_aux_loss, 0);
  EXPECT_EQ(layers_with_experts(config), std::vector<bool>(6, true));
  EXPECT_EQ(
      layers_with_experts(*with(R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3])")),
      (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_EQ(with(R"(, "output_router_logits": true, "router_aux_loss_coef": 0.02)")->router_aux_loss, 0.02);
  EXPECT_EQ(with(R"(, "output_router_logits": true, "router_aux_loss_coef": 0)")->router_aux_loss, 0);
  EXPECT_EQ(with(R"(, "output_router_logits": true)")->router_aux_loss, 0.001);
  EXPECT_EQ(with(R"(, "router_aux_loss_coef": 0.02)")->router_aux_loss, 0);
}

TEST(ExpertsKeysTest, ExpertsHaveTheDefaultsOfTransformers) {
  const auto config = read_with(R"({"model_type": "qwen3_moe"})");
  EXPECT_EQ(config.kinds[0].mlp.experts, (models::ExpertsSpec{.count = 128, .per_token = 8, .normalise = false}));
  EXPECT_EQ(config.kinds[0].mlp.ffn, 768);
  EXPECT_EQ(
      parse_with(R"({"model_type": "qwen3_moe", "num_key_value_heads": "REMOVED"})")->kinds[0].attention.kv_heads, 4);
}

TEST(ExpertsKeysTest, ExpertsThatCannotBeAreRefused) {
  const std::vector<RefusedConfig> cases{
      {R"(, "num_experts_per_tok": 17)", "num_experts_per_tok: at most the number of experts", "found 17"},
      {R"(, "num_local_experts": 8)", "num_experts: as num_local_experts, 8, is expected", "found 16"},
      {R"(, "mlp_only_layers": [6])", "mlp_only_layers: layers in [0, 5] are expected", "found 6"},
      {R"(, "mlp_only_layers": 3)", "mlp_only_layers: a list of layers is expected", "found 3"},
      {R"(, "decoder_sparse_step": 0)", "decoder_sparse_step", "found 0"},
      {R"(, "moe_intermediate_size": 0)", "moe_intermediate_size", "found 0"},
  };
  expect_refused(cases, [](const std::string& more) { return parse_with(absl::StrCat("{", kExperts, more, "}")); });
  // A family without experts does not know the keys.
  EXPECT_THAT(error_of(parse_with(R"({"num_experts": 4})")), HasSubstr("num_experts: unknown key"));
}

} // namespace
} // namespace distill::hf
