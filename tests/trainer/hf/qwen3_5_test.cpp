#include "trainer/hf/qwen3_5.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/config_cases.h"
#include "trainer/models/layout.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// Qwen3.5-9B's text_config.
constexpr const char* kText = R"({"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096,
  "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4,
  "head_dim": 256, "max_position_embeddings": 262144, "rms_norm_eps": 1e-06, "attention_bias": false,
  "attn_output_gate": true, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
  "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
  "tie_word_embeddings": false,
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
    "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

absl::StatusOr<models::ModelConfig> parse(const std::string& overrides) {
  Json json = Json::parse(kText);
  json.update(Json::parse(overrides));
  return parse_model_config(json.dump(), "config.json");
}

TEST(Qwen35Test, ReadsTheTextModel) {
  const auto config = parse("{}").value();
  ASSERT_EQ(config.kinds.size(), 2U);
  EXPECT_EQ(config.count_of(0), 24);
  const models::LayerKind &linear = config.layer(0), &full = config.layer(3);
  ASSERT_TRUE(linear.delta && !full.delta);
  EXPECT_EQ(*linear.delta, (models::DeltaSpec{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128}));
  EXPECT_TRUE(full.attention.output_gate);
  EXPECT_EQ(full.attention.qkv_width(), (2 * 16 + 2 * 4) * 256);
  ASSERT_TRUE(full.attention.qk_norm);
  EXPECT_EQ(full.attention.qk_norm->offset, 1);
  EXPECT_EQ(config.final_norm_offset, 1);
  for (const models::LayerKind& kind : config.kinds) {
    EXPECT_EQ(kind.attention_norms.before->offset, 1);
    EXPECT_EQ(kind.mlp_norms.before->offset, 1);
  }
  ASSERT_EQ(config.ropes.size(), 1U);
  EXPECT_EQ(config.ropes[0].dim, 64);
  EXPECT_EQ(config.ropes[0].theta, 1e7);
  EXPECT_EQ(models::parameter_count(models::unit_layouts(config)), 8953803264);
}

TEST(Qwen35Test, TheLayoutNamesTheTensorsOfAFolder) {
  const auto config = parse("{}").value();
  const models::UnitLayout block = models::block_layout(config, 1);
  const std::string prefix = "model.layers.1.linear_attn.";
  const auto expect = [&](const char* param, size_t part, const std::string& name, std::vector<int64_t> shape) {
    const models::ParamLayout* found = block.find(param);
    ASSERT_NE(found, nullptr) << param;
    EXPECT_EQ(found->parts.at(part).hf_name, prefix + name);
    EXPECT_EQ(models::part_shape(*found, found->parts[part]), shape);
  };
  expect("qkvz", 0, "in_proj_qkv.weight", {8192, 4096});
  expect("qkvz", 1, "in_proj_z.weight", {4096, 4096});
  expect("ba", 0, "in_proj_b.weight", {32, 4096});
  expect("ba", 1, "in_proj_a.weight", {32, 4096});
  expect("conv", 0, "conv1d.weight", {8192, 1, 4});
  expect("a_log", 0, "A_log", {32});
  expect("dt_bias", 0, "dt_bias", {32});
  expect("gate_norm", 0, "norm.weight", {128});
  expect("delta_out", 0, "out_proj.weight", {4096, 4096});
  const models::BlockProducts products = models::block_products(config);
  EXPECT_EQ(products[1], (std::vector<std::string>{"qkvz", "delta_out", "gate_up", "down"}));
  EXPECT_EQ(products[3], (std::vector<std::string>{"qkv", "o", "gate_up", "down"}));
}

TEST(Qwen35Test, AbsentKeysHaveTheDefaultsOfTransformers) {
  const auto given = parse("{}").value();
  Json json = Json::parse(kText);
  for (const char* key :
       {"num_key_value_heads", "head_dim", "attn_output_gate", "full_attention_interval", "linear_conv_kernel_dim",
        "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"}) {
    json.erase(key);
  }
  json["rope_parameters"].erase("partial_rotary_factor");
  const auto defaults = parse_model_config(json.dump(), "config.json").value();
  EXPECT_EQ(defaults, given);
}

TEST(Qwen35Test, LayerTypesMayBeListed) {
  const auto listed = parse(
                          R"({"num_hidden_layers": 3, "full_attention_interval": null,
          "layer_types": ["full_attention", "linear_attention", "linear_attention"]})")
                          .value();
  EXPECT_TRUE(!listed.layer(0).delta && listed.layer(1).delta && listed.layer(2).delta);
  const auto both = parse(
      R"({"num_hidden_layers": 4, "layer_types": ["linear_attention", "linear_attention", "linear_attention",
          "full_attention"]})");
  EXPECT_TRUE(both.ok()) << both.status();
}

TEST(Qwen35Test, WhatCannotBeIsRefused) {
  const std::vector<RefusedConfig> cases{
      {R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]})", "layer_types",
       "full_attention_interval"},
      {R"({"num_hidden_layers": 2, "layer_types": ["full_attention"], "full_attention_interval": null})", "layer_types",
       "num_hidden_layers, 2"},
      {R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})", "full_attention or linear_attention",
       "sliding_attention"},
      {R"({"full_attention_interval": 0})", "full_attention_interval", "found 0"},
      {R"({"linear_num_value_heads": 24})", "linear_num_value_heads", "24"},
      {R"({"linear_conv_kernel_dim": 99})", "linear_conv_kernel_dim", "99"},
      {R"({"linear_key_head_dim": 0})", "linear_key_head_dim", "found 0"},
      {R"({"attn_output_gate": false})", "attn_output_gate", "false"},
      {R"({"mamba_ssm_dtype": "bfloat16"})", "mamba_ssm_dtype", "bfloat16"},
      {R"({"attention_bias": true})", "attention_bias", "true"},
      {R"({"hidden_act": "gelu"})", "hidden_act", "gelu"},
      {R"({"hidden_size": null})", "hidden_size", "missing"},
      {R"({"rope_parameters": {"partial_rotary_factor": 0.005}})", "partial_rotary_factor", "even number"},
      {R"({"rope_parameters": {"mrope_sections": [1]}})", "mrope_sections", "not known"},
  };
  expect_refused(cases, parse);
  const auto other = parse_model_config(
      R"({"model_type": "qwen3", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-6,
          "layer_types": ["linear_attention"]})",
      "config.json");
  EXPECT_THAT(error_of(other), HasSubstr("full_attention or sliding_attention is expected"));
}

} // namespace
} // namespace distill::hf
