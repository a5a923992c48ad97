#include "trainer/hf/gemma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/config_cases.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// The text_config of Gemma-3-4b, which leaves the rest to its class.
TEST(GemmaTest, ASparseGemmaHasItsClassesDefaults) {
  const auto config =
      parse_model_config(
          R"({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024})",
          "config.json")
          .value();
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.final_softcap, 0);
  EXPECT_EQ(config.final_norm_offset, 1);
  EXPECT_DOUBLE_EQ(config.embedding_scale, std::sqrt(2560.0));
  ASSERT_EQ(config.kinds.size(), 2U);
  EXPECT_EQ(config.count_of(0), 29);
  const models::AttentionSpec &sliding = config.kinds[0].attention, &full = config.kinds[1].attention;
  EXPECT_EQ(config.layers[5], 1);
  EXPECT_EQ(sliding.head_dim, 256);
  EXPECT_EQ(sliding.kv_heads, 4);
  EXPECT_DOUBLE_EQ(*sliding.scale, 1.0 / 16);
  EXPECT_EQ(sliding.window, 1024);
  EXPECT_FALSE(full.window);
  const models::RopeSpec& global = config.ropes.at(static_cast<size_t>(*full.rope));
  const models::RopeSpec& local = config.ropes.at(static_cast<size_t>(*sliding.rope));
  EXPECT_EQ(global.theta, 1e6);
  EXPECT_EQ(global.linear_factor, 8);
  EXPECT_EQ(local.theta, 1e4);
  EXPECT_EQ(local.linear_factor, 1);
}

// The text_config of Gemma-4-31B.
constexpr const char* kGemma4 = R"({"model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 5376,
  "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
  "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true,
  "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 0,
  "enable_moe_block": false, "num_experts": null, "use_double_wide_mlp": false, "max_position_embeddings": 262144,
  "sliding_window": 1024, "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
  "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
  "rope_parameters": {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}})";

absl::StatusOr<models::ModelConfig> parse_gemma4(const std::string& overrides, Notes* notes = nullptr) {
  Json json = Json::parse(kGemma4);
  json.update(Json::parse(overrides));
  return parse_model_config(json.dump(), "config.json", {}, notes);
}

models::ModelConfig read_gemma4(const std::string& overrides, Notes* notes = nullptr) {
  return parse_gemma4(overrides, notes).value();
}

TEST(GemmaTest, ReadsGemma4) {
  const auto config = read_gemma4("{}");
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_EQ(config.final_norm_offset, 0);
  EXPECT_DOUBLE_EQ(config.embedding_scale, std::sqrt(5376.0));
  ASSERT_EQ(config.kinds.size(), 2U);
  EXPECT_EQ(config.count_of(0), 50);
  const models::LayerKind &sliding = config.kinds[0], &full = config.kinds[1];
  EXPECT_EQ(config.layer(59), full);
  EXPECT_EQ(sliding.attention.window, 1024);
  EXPECT_EQ(sliding.attention.head_dim, 256);
  EXPECT_EQ(sliding.attention.kv_heads, 16);
  EXPECT_EQ(full.attention.head_dim, 512);
  EXPECT_EQ(full.attention.kv_heads, 4);
  EXPECT_FALSE(full.attention.window || sliding.attention.keys_are_values);
  EXPECT_TRUE(full.attention.keys_are_values);
  EXPECT_EQ(full.attention.qkv_width(), (32 + 4) * 512);
  for (const models::LayerKind* kind : {&sliding, &full}) {
    EXPECT_EQ(kind->attention.scale, 1);
    EXPECT_TRUE(kind->attention.v_norm && kind->attention.qk_norm && kind->scaled_output);
  }
  const models::RopeSpec &wide = config.ropes.at(0), &narrow = config.ropes.at(1);
  EXPECT_EQ(full.attention.rope, 0);
  EXPECT_EQ(wide.dim, 512);
  EXPECT_EQ(wide.turning_pairs, 64);
  EXPECT_EQ(narrow.dim, 256);
  EXPECT_FALSE(narrow.turning_pairs);
}

// transformers writes the heads of each layer, and the folders of the hub two keys.
TEST(GemmaTest, Gemma4sHeadsInBothSpellings) {
  std::string layers;
  for (int layer = 5; layer < 60; layer += 6) {
    absl::StrAppend(
        &layers, layers.empty() ? "" : ", ", "\"", layer, R"(": {"head_dim": 512, "num_key_value_heads": 4})");
  }
  const auto written = read_gemma4(
      R"({"global_head_dim": null, "num_global_key_value_heads": null, "per_layer_config": {)" + layers + "}}");
  EXPECT_EQ(written, *parse_gemma4("{}"));
  // Without attention_k_eq_v, transformers reads num_key_value_heads.
  const auto projected = read_gemma4(R"({"attention_k_eq_v": false})");
  EXPECT_EQ(projected.kinds[1].attention.kv_heads, 16);
}

TEST(GemmaTest, Gemma4sLastLayerHasNoWindow) {
  Notes notes;
  const auto config =
      read_gemma4(R"({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "sliding_attention"]})", &notes);
  EXPECT_TRUE(config.layer(0).attention.window);
  EXPECT_FALSE(config.layer(1).attention.window);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0].text, HasSubstr("layer_types"));
}

TEST(GemmaTest, WhatGemma4HasBesideItsDenseModelsIsNamed) {
  const std::vector<RefusedConfig> cases{
      {R"({"enable_moe_block": true})", "enable_moe_block", "true"},
      {R"({"hidden_size_per_layer_input": 256})", "hidden_size_per_layer_input", "256"},
      {R"({"num_kv_shared_layers": 20})", "num_kv_shared_layers", "20"},
      {R"({"use_bidirectional_attention": "all"})", "use_bidirectional_attention", "all"},
      {R"({"attention_bias": true})", "attention_bias", "true"},
      {R"({"global_head_dim": 511})", "global_head_dim", "511"},
      {R"({"num_global_key_value_heads": 5})", "num_global_key_value_heads", "5"},
      {R"({"rope_parameters": null})", "rope_parameters.full_attention", "missing"},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "proportional"}}})", "rope_parameters.sliding_attention",
       "missing"},
      {R"({"per_layer_config": {"0": {"head_dim": 128}}})", "per_layer_config.0", "128"},
      {R"({"per_layer_config": {"5": {"head_dim": 512}}})", "per_layer_config", "layers 5 and 11"},
      {R"({"per_layer_config": {"5": {"sliding_window": 4}}})", "per_layer_config.5.sliding_window", "4"},
      {R"({"per_layer_config": {"x": {}}})", "per_layer_config.x", "number of a layer"},
      {R"({"per_layer_config": [1]})", "per_layer_config", "[1]"},
  };
  expect_refused(cases, [](const std::string& overrides) { return parse_gemma4(overrides); });
  // The class's default is the E2B model's.
  EXPECT_THAT(
      error_of(parse_model_config(R"({"model_type": "gemma4_text"})", "config.json")),
      HasSubstr("hidden_size_per_layer_input: 0 is expected, since Gemma 4's embeddings of layers are not supported, "
                "found 256, the default of transformers' class"));
}

TEST(GemmaTest, ReadsGemma2) {
  const auto config = parse_model_config(R"({"model_type": "gemma2", "num_hidden_layers": 4})", "config.json").value();
  EXPECT_EQ(config.layers, (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(config.kinds[0].attention.window, 4096);
  EXPECT_EQ(config.kinds[1].attention.softcap, 50);
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_FALSE(config.kinds[0].attention.qk_norm);
}

} // namespace
} // namespace distill::hf
