#include "trainer/models/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/hf/config_cases.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The window of the layers that have one.
std::optional<int64_t> window_of(const models::ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    if (const auto& window = config.layer(layer).attention.window) {
      return window;
    }
  }
  return std::nullopt;
}

TEST(ModelConfigTest, ReadsLlama3) {
  const auto config = read_with("{}");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.vocab_size, 128256);
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.kinds[0].mlp.ffn, 14336);
  EXPECT_EQ(config.num_layers(), 32);
  EXPECT_EQ(config.kinds[0].attention.kv_heads, 8);
  EXPECT_EQ(config.kinds[0].attention.head_dim, 128);
  EXPECT_EQ(config.ropes[0].theta, 500000.0);
  EXPECT_EQ(config.final_norm_eps, 1e-5);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_FALSE(
      config.tie_word_embeddings || config.kinds[0].attention.qkv_bias || config.kinds[0].attention.qk_norm ||
      config.ropes[0].llama3 || config.kinds[0].attention.window);
}

TEST(ModelConfigTest, MissingOptionalKeysTakeTransformersDefaults) {
  const auto config =
      read_with(R"({"num_key_value_heads": "REMOVED", "rope_theta": "REMOVED", "torch_dtype": "REMOVED"})");
  EXPECT_EQ(config.kinds[0].attention.kv_heads, 32);
  EXPECT_EQ(config.ropes[0].theta, 10000.0);
  EXPECT_EQ(config.dtype, "float32");
}

TEST(ModelConfigTest, HeadDimNeedNotBeDerived) {
  const auto config = read_with(R"({"head_dim": 96, "num_attention_heads": 24})");
  EXPECT_EQ(config.kinds[0].attention.head_dim, 96);
}

TEST(ModelConfigTest, FamiliesDiffer) {
  const auto qwen2 = read_with(
      R"({"model_type": "qwen2", "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 28})");
  EXPECT_TRUE(
      qwen2.kinds[0].attention.qkv_bias && !qwen2.kinds[0].attention.qk_norm && !qwen2.kinds[0].attention.window);
  const auto qwen3 = read_with(R"({"model_type": "qwen3"})");
  EXPECT_TRUE(qwen3.kinds[0].attention.qk_norm && !qwen3.kinds[0].attention.qkv_bias);
  EXPECT_EQ(qwen3.kinds[0].attention.head_dim, 128);
  const auto mistral = read_with(R"({"model_type": "mistral", "sliding_window": null})");
  EXPECT_FALSE(mistral.kinds[0].attention.window);
}

TEST(ModelConfigTest, AWindowDoesNotLimitTheSequenceLength) {
  const auto config = read_with(R"({"model_type": "mistral", "sliding_window": 4096})");
  EXPECT_EQ(window_of(config), 4096);
  EXPECT_TRUE(models::check_sequence_length(config, 131072).ok());
  EXPECT_THAT(models::check_sequence_length(config, 131073).message(), HasSubstr("max_position_embeddings (131072)"));
  const auto absent = read_with(R"({"model_type": "mistral"})");
  EXPECT_EQ(window_of(absent), 4096);
  const auto qwen = read_with(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 1024})");
  EXPECT_EQ(window_of(qwen), 1024);
}

TEST(ModelConfigTest, LayerTypesSayWhichLayersHaveAWindow) {
  const auto config = read_with(
      R"({"model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 1024,
          "layer_types": ["full_attention", "sliding_attention", "full_attention"]})");
  EXPECT_EQ(config.layers, (std::vector<int64_t>{0, 1, 0}));
  EXPECT_FALSE(config.layer(0).attention.window);
  EXPECT_EQ(config.layer(1).attention.window, 1024);
}

TEST(ModelConfigTest, KeyValueHeadsThatAreNotGivenAreTheFamilys) {
  for (const auto& [family, heads] :
       std::map<std::string, int64_t>{{"llama", 64}, {"mistral", 8}, {"qwen2", 32}, {"qwen3", 32}, {"exaone4", 32}}) {
    const std::string keys =
        absl::StrCat(R"({"num_attention_heads": 64, "sliding_window": null, "model_type": ")", family, "\"");
    const auto absent = parse_with(absl::StrCat(keys, R"(, "num_key_value_heads": "REMOVED"})"));
    const auto null = parse_with(absl::StrCat(keys, R"(, "num_key_value_heads": null})"));
    ASSERT_TRUE(absent.ok() && null.ok()) << absent.status() << null.status();
    EXPECT_EQ(absent->kinds[0].attention.kv_heads, heads) << family;
    EXPECT_EQ(null->kinds[0].attention.kv_heads, 64) << family;
  }
}

TEST(ModelConfigTest, DtypesInTorchsSpellings) {
  for (const auto& [name, dtype] : std::map<std::string, std::string>{
           {"torch.bfloat16", "bfloat16"},
           {"torch.float32", "float32"},
           {"half", "float16"},
           {"float", "float32"},
           {"auto", "float32"}}) {
    for (const char* key : {"torch_dtype", "dtype"}) {
      const auto config = read_with(absl::StrCat(R"({"torch_dtype": null, ")", key, R"(": ")", name, "\"}"));
      EXPECT_EQ(config.dtype, dtype) << key << ": " << name;
    }
  }
}

struct Window {
  const char* keys;
  std::optional<int64_t> window;
  const char* note; // nullptr: none
};

TEST(ModelConfigTest, AWindowThatNoLayerHasIsNone) {
  const std::vector<Window> cases{
      {R"({"sliding_window": 64})", {}, "model_type llama"},
      {R"({"sliding_window": 64, "layer_types": ["full_attention", "full_attention"]})", {}, "layer_types"},
      {R"({"model_type": "mistral", "sliding_window": 64, "layer_types": ["sliding_attention", "sliding_attention"]})",
       64, nullptr},
      {R"({"model_type": "mistral", "sliding_window": 64})", 64, nullptr},
      {R"({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": false})", {}, nullptr},
      {R"({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true})", {}, "max_window_layers 28 of 2"},
      {R"({"model_type": "qwen3", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 2})",
       {},
       "max_window_layers 2 of 2"},
      {R"({"model_type": "qwen3", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 1})", 64,
       nullptr},
      {R"({"model_type": "qwen3", "sliding_window": null, "use_sliding_window": true, "max_window_layers": 0})",
       {},
       nullptr},
      {R"({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 0,
           "layer_types": ["full_attention", "full_attention"]})",
       {},
       "layer_types"},
      {R"({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 2,
           "layer_types": ["full_attention", "sliding_attention"]})",
       64, nullptr},
  };
  for (const Window& c : cases) {
    Json keys = Json::parse(c.keys);
    keys["num_hidden_layers"] = 2;
    Notes notes;
    const auto config = parse_with(keys.dump(), &notes);
    ASSERT_TRUE(config.ok()) << c.keys << config.status();
    EXPECT_EQ(window_of(*config), c.window) << c.keys;
    ASSERT_EQ(notes.size(), c.note ? 1U : 0U) << c.keys;
    if (c.note != nullptr) {
      EXPECT_THAT(notes[0].text, AllOf(HasSubstr("sliding_window 64 has no effect"), HasSubstr(c.note))) << c.keys;
    }
  }
}

TEST(ModelConfigTest, WhatIsNotSupportedIsNamed) {
  const std::vector<RefusedConfig> cases{
      {R"({"model_type": "gpt2"})", "model_type", "gpt2"},
      {R"({"model_type": "REMOVED"})", "model_type", "missing"},
      {R"({"model_type": 3})", "model_type", "3"},
      {R"({"attention_bias": true})", "attention_bias", "true"},
      {R"({"mlp_bias": true})", "mlp_bias", "true"},
      {R"({"hidden_act": "gelu"})", "hidden_act", "gelu"},
      {R"({"attention_dropout": 0.1})", "attention_dropout", "0.1"},
      {R"({"pretraining_tp": 2})", "pretraining_tp", "2"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", "quantization_config", "gptq"},
      {R"({"rope_scaling": {"rope_type": "yarn"}})", "rope_scaling.factor", "missing"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "long_factor": [1]}})", "rope_scaling.long_factor",
       "not known"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": 1}})", "rope_scaling.truncate", "1"},
      {R"({"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2]}})", "rope_scaling.short_factor",
       "a list of 64 numbers"},
      {R"({"rope_scaling": {"type": "dynamic", "factor": 4.0}})", "rope_scaling.rope_type", "dynamic"},
      {R"({"rope_scaling": "llama3"})", "rope_scaling", "object"},
      {R"({"rope_scaling": {"rope_type": "linear"}})", "rope_scaling.factor", "missing"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": -1}})", "rope_scaling.factor", "-1"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32}})", "rope_scaling.beta_fast", "32"},
      {R"({"rope_scaling": {"rope_type": 7}})", "rope_scaling.rope_type", "7"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
            "original_max_position_embeddings": 8192}})",
       "high_freq_factor", "low_freq_factor (4)"},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", "rope_parameters.full_attention",
       "default"},
      {R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})", "partial_rotary_factor",
       "0.5"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "0.5"},
      {R"({"rope_theta": 0})", "rope_theta", "0"},
      {R"({"rope_theta": "10000"})", "rope_theta", "10000"},
      {R"({"hidden_size": "REMOVED"})", "hidden_size", "missing"},
      {R"({"hidden_size": -4})", "hidden_size", "-4"},
      {R"({"hidden_size": 4096.5})", "hidden_size", "4096.5"},
      {R"({"hidden_size": 4097})", "hidden_size", "num_attention_heads (32)"},
      {R"({"vocab_size": 0})", "vocab_size", "0"},
      {R"({"vocab_size": 18446744073709551615})", "vocab_size", "18446744073709551615"},
      {R"({"vocab_size": true})", "vocab_size", "true"},
      {R"({"num_hidden_layers": 1000000})", "num_hidden_layers", "1000000"},
      {R"({"num_attention_heads": 0})", "num_attention_heads", "0"},
      {R"({"num_key_value_heads": 5})", "num_key_value_heads (5)", "32"},
      {R"({"head_dim": 33})", "head_dim", "33"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps", "0"},
      {R"({"rms_norm_eps": "REMOVED"})", "rms_norm_eps", "missing"},
      {R"({"tie_word_embeddings": "yes"})", "tie_word_embeddings", "yes"},
      {R"({"torch_dtype": "int8"})", "torch_dtype", "int8"},
      {R"({"dtype": 16})", "dtype", "16"},
      {R"({"model_type": "exaone4", "sliding_window_pattern": "LLLG"})", "sliding_window_pattern", "LLLG"},
      {R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})", "layer_types", "no window"},
      {R"({"model_type": "mistral", "num_hidden_layers": 1, "layer_types": ["full_attention"]})", "layer_types",
       "all of whose layers have the window"},
      {R"({"model_type": "qwen2", "sliding_window": 64, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]})",
       "layer_types", "use_sliding_window: true"},
      {R"({"layer_types": ["full_attention"]})", "layer_types: an entry for each of num_hidden_layers, 32", "found"},
      {R"({"layer_types": "full_attention"})", "layer_types", "num_hidden_layers, 32"},
      {R"({"num_experts": 8})", "num_experts", "unknown key"},
      {R"({"pruned_heads": {"0": [1]}})", "pruned_heads", "only {} is supported"},
      {R"({"per_layer_config": {"0": {"num_attention_heads": 4}}})", "per_layer_config", "unknown key"},
      {R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping", "30.0"},
      {R"({"auto_map": {"AutoModel": "x.y"}})", "auto_map", "unknown key"},
      {R"({"hidden_size": 16777216, "intermediate_size": 16777216})", "hidden_size", "parameters"},
      {R"({"layer_types": ["full_attention", "linear_attention"]})", "layer_types", "linear_attention"},
      {R"({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0})", "attn_logit_softcapping", "50.0"},
      {R"({"model_type": "gemma3_text", "use_bidirectional_attention": true})", "use_bidirectional_attention", "true"},
      {R"({"model_type": "gemma3_text", "hidden_activation": "gelu"})", "hidden_activation", "gelu"},
      {R"({"model_type": "ministral3"})", "llama_4_scaling_beta", "missing"},
      {R"({"model_type": "olmo3", "rope_parameters": {"rope_type": "default"}})", "rope_parameters.rope_type",
       "full_attention and sliding_attention"},
      {R"({"model_type": "phi3", "partial_rotary_factor": 0.26})", "partial_rotary_factor", "found 33"},
      {R"({"model_type": "smollm3", "no_rope_layers": [1, 0]})", "no_rope_layers", "32"},
      {R"({"model_type": "smollm3", "use_sliding_window": true, "sliding_window": 8})", "layer_types", "missing"},
      {R"({"initializer_range": 7})", "initializer_range", "7"},
  };
  expect_refused(cases, [](const std::string& overrides) { return parse_with(overrides); });
}

TEST(ModelConfigTest, AnUnknownKeyIsIgnoredWhenTheUserSaysSo) {
  Json json = Json::parse(kLlama);
  json["my_note"] = "trained on a Tuesday";
  const auto refused = parse_model_config(json.dump(), "config.json");
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("student.ignore_config_keys"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("[my_note]"));
  EXPECT_TRUE(parse_model_config(json.dump(), "config.json", {"my_note", "absent"}).ok());
  // A key that is known to change the mathematics stays refused.
  json["attention_bias"] = true;
  json["hidden_size"] = -4;
  const auto changed = parse_model_config(json.dump(), "config.json", {"my_note", "attention_bias", "hidden_size"});
  EXPECT_THAT(
      std::string(changed.status().message()), AllOf(HasSubstr("attention_bias: only"), HasSubstr("hidden_size")));
}

TEST(ModelConfigTest, OneReportHoldsEveryError) {
  EXPECT_THAT(
      error_of(parse_with(R"({"hidden_size": "REMOVED", "mlp_bias": true, "num_experts": 8})")),
      AllOf(HasSubstr("hidden_size"), HasSubstr("mlp_bias"), HasSubstr("num_experts")));
}

TEST(ModelConfigTest, BadJsonIsRefused) {
  for (const char* text :
       {"", "{", "[]", "3", "{\"a\": 1} x", "{\"model_type\": \"llama\", \"model_type\": \"llama\"}", "\xff\xfe"}) {
    EXPECT_FALSE(parse_model_config(text, "config.json").ok()) << text;
  }
  const std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(std::string(parse_model_config(deep, "config.json").status().message()), HasSubstr("nested deeper"));
  EXPECT_THAT(
      std::string(parse_model_config("{\"a\": 1, \"a\": 2}", "config.json").status().message()),
      HasSubstr("\"a\" appears twice"));
}

TEST(ModelConfigTest, AMissingFolderIsNamed) {
  const auto config = read_model_config("/nonexistent/folder");
  EXPECT_TRUE(absl::IsNotFound(config.status()));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("/nonexistent/folder"));
}

} // namespace
} // namespace distill::hf
