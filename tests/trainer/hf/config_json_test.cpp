#include "trainer/models/model_config.h"

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/base/json.h"
#include "trainer/hf/config_json.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
  "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "pretraining_tp": 1, "use_cache": true,
  "bos_token_id": 1, "eos_token_id": [1, 2], "initializer_range": 0.02, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0"})";

// kLlama with some keys replaced or added; a JSON null text removes the key.
absl::StatusOr<models::ModelConfig> parse_with(const std::string& overrides, Notes* notes = nullptr) {
  Json json = Json::parse(kLlama);
  const Json changes = Json::parse(overrides);
  for (const auto& [key, value] : changes.items()) {
    if (value == "REMOVED") {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return parse_model_config(json.dump(), "config.json", {}, notes);
}

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
  const auto config = parse_with("{}");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model_type, "llama");
  EXPECT_EQ(config->vocab_size, 128256);
  EXPECT_EQ(config->hidden_size, 4096);
  EXPECT_EQ(config->kinds[0].mlp.ffn, 14336);
  EXPECT_EQ(config->num_layers(), 32);
  EXPECT_EQ(config->kinds[0].attention.kv_heads, 8);
  EXPECT_EQ(config->kinds[0].attention.head_dim, 128);
  EXPECT_EQ(config->ropes[0].theta, 500000.0);
  EXPECT_EQ(config->final_norm_eps, 1e-5);
  EXPECT_EQ(config->dtype, "bfloat16");
  EXPECT_FALSE(
      config->tie_word_embeddings || config->kinds[0].attention.qkv_bias || config->kinds[0].attention.qk_norm ||
      config->ropes[0].llama3 || config->kinds[0].attention.window);
}

TEST(ModelConfigTest, MissingOptionalKeysTakeTransformersDefaults) {
  const auto config =
      parse_with(R"({"num_key_value_heads": "REMOVED", "rope_theta": "REMOVED", "torch_dtype": "REMOVED"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kinds[0].attention.kv_heads, 32);
  EXPECT_EQ(config->ropes[0].theta, 10000.0);
  EXPECT_EQ(config->dtype, "float32");
}

TEST(ModelConfigTest, HeadDimNeedNotBeDerived) {
  const auto config = parse_with(R"({"head_dim": 96, "num_attention_heads": 24})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kinds[0].attention.head_dim, 96);
}

TEST(ModelConfigTest, FamiliesDiffer) {
  const auto qwen2 = parse_with(
      R"({"model_type": "qwen2", "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 28})");
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_TRUE(
      qwen2->kinds[0].attention.qkv_bias && !qwen2->kinds[0].attention.qk_norm && !qwen2->kinds[0].attention.window);
  const auto qwen3 = parse_with(R"({"model_type": "qwen3"})");
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_TRUE(qwen3->kinds[0].attention.qk_norm && !qwen3->kinds[0].attention.qkv_bias);
  EXPECT_EQ(qwen3->kinds[0].attention.head_dim, 128);
  const auto mistral = parse_with(R"({"model_type": "mistral", "sliding_window": null})");
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_FALSE(mistral->kinds[0].attention.window);
}

TEST(ModelConfigTest, BothSpellingsOfLlama3ScalingAgree) {
  const char* scaling = R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192)";
  const auto old_spelling = parse_with(absl::StrCat(R"({"rope_scaling": )", scaling, "}}"));
  const auto new_spelling = parse_with(absl::StrCat(
      R"({"rope_theta": "REMOVED", "torch_dtype": "REMOVED", "dtype": "float16", "rope_parameters": )", scaling,
      R"(, "rope_theta": 500000.0}})"));
  ASSERT_TRUE(old_spelling.ok()) << old_spelling.status();
  ASSERT_TRUE(new_spelling.ok()) << new_spelling.status();
  for (const auto& config : {*old_spelling, *new_spelling}) {
    ASSERT_TRUE(config.ropes[0].llama3);
    EXPECT_EQ(config.ropes[0].llama3->factor, 32.0);
    EXPECT_EQ(config.ropes[0].llama3->original_max_position_embeddings, 8192);
    EXPECT_EQ(config.ropes[0].theta, 500000.0);
  }
  EXPECT_EQ(new_spelling->dtype, "float16");
}

TEST(ModelConfigTest, LinearScalingAndTheOldNameOfItsType) {
  const auto config = parse_with(R"({"rope_scaling": {"type": "linear", "factor": 2.5}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].linear_factor, 2.5);
}

TEST(ModelConfigTest, AWindowDoesNotLimitTheSequenceLength) {
  const auto config = parse_with(R"({"model_type": "mistral", "sliding_window": 4096})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(window_of(*config), 4096);
  EXPECT_TRUE(models::check_sequence_length(*config, 131072).ok());
  EXPECT_THAT(models::check_sequence_length(*config, 131073).message(), HasSubstr("max_position_embeddings (131072)"));
  const auto absent = parse_with(R"({"model_type": "mistral"})");
  ASSERT_TRUE(absent.ok()) << absent.status();
  EXPECT_EQ(window_of(*absent), 4096);
  const auto qwen = parse_with(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 1024})");
  ASSERT_TRUE(qwen.ok()) << qwen.status();
  EXPECT_EQ(window_of(*qwen), 1024);
}

TEST(ModelConfigTest, LayerTypesSayWhichLayersHaveAWindow) {
  const auto config = parse_with(
      R"({"model_type": "qwen2", "num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 1024,
          "layer_types": ["full_attention", "sliding_attention", "full_attention"]})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, (std::vector<int64_t>{0, 1, 0}));
  EXPECT_FALSE(config->layer(0).attention.window);
  EXPECT_EQ(config->layer(1).attention.window, 1024);
}

// As transformers computes EXAONE 4, whose layers of full attention have no RoPE if others have a window.
TEST(ModelConfigTest, LayersMayDifferInTheirRope) {
  const std::string keys = R"({"model_type": "exaone4", "num_hidden_layers": 8)";
  const auto windows = parse_with(keys + R"(, "sliding_window_pattern": 4})");
  ASSERT_TRUE(windows.ok()) << windows.status();
  EXPECT_EQ(windows->layers, (std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(windows->kinds[0].attention.window, 4096);
  EXPECT_TRUE(windows->kinds[0].attention.rope && !windows->kinds[1].attention.rope);
  EXPECT_FALSE(windows->kinds[1].attention.window);
  const auto full = parse_with(keys + R"(, "sliding_window": null, "sliding_window_pattern": 4})");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->kinds.size(), 1U);
  EXPECT_TRUE(full->kinds[0].attention.rope && !full->kinds[0].attention.window);
}

// The text_config of Gemma-3-4b, which leaves the rest to its class.
TEST(ModelConfigTest, ASparseGemmaHasItsClassesDefaults) {
  const auto config = parse_model_config(
      R"({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024})",
      "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->final_softcap, 0);
  EXPECT_EQ(config->final_norm_offset, 1);
  EXPECT_DOUBLE_EQ(config->embedding_scale, std::sqrt(2560.0));
  ASSERT_EQ(config->kinds.size(), 2U);
  EXPECT_EQ(config->count_of(0), 29);
  const models::AttentionSpec &sliding = config->kinds[0].attention, &full = config->kinds[1].attention;
  EXPECT_EQ(config->layers[5], 1);
  EXPECT_EQ(sliding.head_dim, 256);
  EXPECT_EQ(sliding.kv_heads, 4);
  EXPECT_DOUBLE_EQ(*sliding.scale, 1.0 / 16);
  EXPECT_EQ(sliding.window, 1024);
  EXPECT_FALSE(full.window);
  const models::RopeSpec& global = config->ropes.at(static_cast<size_t>(*full.rope));
  const models::RopeSpec& local = config->ropes.at(static_cast<size_t>(*sliding.rope));
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

TEST(ModelConfigTest, ReadsGemma4) {
  const auto config = parse_gemma4("{}");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->final_softcap, 30);
  EXPECT_EQ(config->final_norm_offset, 0);
  EXPECT_DOUBLE_EQ(config->embedding_scale, std::sqrt(5376.0));
  ASSERT_EQ(config->kinds.size(), 2U);
  EXPECT_EQ(config->count_of(0), 50);
  const models::LayerKind &sliding = config->kinds[0], &full = config->kinds[1];
  EXPECT_EQ(config->layer(59), full);
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
  const models::RopeSpec &wide = config->ropes.at(0), &narrow = config->ropes.at(1);
  EXPECT_EQ(full.attention.rope, 0);
  EXPECT_EQ(wide.dim, 512);
  EXPECT_EQ(wide.turning_pairs, 64);
  EXPECT_EQ(narrow.dim, 256);
  EXPECT_FALSE(narrow.turning_pairs);
}

// transformers writes the heads of each layer, and the folders of the hub two keys.
TEST(ModelConfigTest, Gemma4sHeadsInBothSpellings) {
  std::string layers;
  for (int layer = 5; layer < 60; layer += 6) {
    absl::StrAppend(
        &layers, layers.empty() ? "" : ", ", "\"", layer, R"(": {"head_dim": 512, "num_key_value_heads": 4})");
  }
  const auto written = parse_gemma4(
      R"({"global_head_dim": null, "num_global_key_value_heads": null, "per_layer_config": {)" + layers + "}}");
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(*written, *parse_gemma4("{}"));
  // Without attention_k_eq_v, transformers reads num_key_value_heads.
  const auto projected = parse_gemma4(R"({"attention_k_eq_v": false})");
  ASSERT_TRUE(projected.ok()) << projected.status();
  EXPECT_EQ(projected->kinds[1].attention.kv_heads, 16);
}

TEST(ModelConfigTest, Gemma4sLastLayerHasNoWindow) {
  Notes notes;
  const auto config =
      parse_gemma4(R"({"num_hidden_layers": 2, "layer_types": ["sliding_attention", "sliding_attention"]})", &notes);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->layer(0).attention.window);
  EXPECT_FALSE(config->layer(1).attention.window);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0].text, HasSubstr("layer_types"));
}

TEST(ModelConfigTest, WhatGemma4HasBesideItsDenseModelsIsNamed) {
  const std::vector<std::vector<std::string>> cases{
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
  for (const auto& c : cases) {
    const auto config = parse_gemma4(c[0]);
    ASSERT_FALSE(config.ok()) << c[0];
    EXPECT_THAT(std::string(config.status().message()), AllOf(HasSubstr(c[1]), HasSubstr(c[2]))) << c[0];
  }
  // The class's default is the E2B model's.
  const auto sparse = parse_model_config(R"({"model_type": "gemma4_text"})", "config.json");
  EXPECT_THAT(
      std::string(sparse.status().message()),
      HasSubstr("hidden_size_per_layer_input: 0 is expected, since Gemma 4's embeddings of layers are not supported, "
                "found 256, the default of transformers' class"));
}

TEST(ModelConfigTest, ReadsGemma2) {
  const auto config = parse_model_config(R"({"model_type": "gemma2", "num_hidden_layers": 4})", "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(config->kinds[0].attention.window, 4096);
  EXPECT_EQ(config->kinds[1].attention.softcap, 50);
  EXPECT_EQ(config->final_softcap, 30);
  EXPECT_FALSE(config->kinds[0].attention.qk_norm);
}

// rope_theta of a family with two ropes is that of full_attention alone, for transformers.
TEST(ModelConfigTest, RopesByLayerTypeAreReadAsTransformersReadsThem) {
  Notes notes;
  const auto config = parse_with(
      R"({"model_type": "olmo3", "rope_theta": 7.0, "num_hidden_layers": 4,
          "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}})",
      &notes);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->ropes.size(), 2U);
  EXPECT_EQ(config->ropes[0].theta, 7);
  EXPECT_TRUE(config->ropes[0].yarn);
  EXPECT_EQ(config->ropes[1].theta, 500000);
  EXPECT_FALSE(config->ropes[1].yarn);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0].text, HasSubstr("that of full_attention alone"));
}

TEST(ModelConfigTest, PhiRotatesAPartOfEachHead) {
  const auto config = parse_with(
      R"({"model_type": "phi3", "head_dim": 16, "partial_rotary_factor": 0.25, "max_position_embeddings": 16384,
          "sliding_window": 262144,
          "rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].dim, 4);
  EXPECT_TRUE(config->kinds[0].fused_tensors);
  ASSERT_TRUE(config->ropes[0].longrope);
  EXPECT_EQ(config->ropes[0].longrope->original_max_position_embeddings, 4096);
  EXPECT_DOUBLE_EQ(config->ropes[0].attention_factor, std::sqrt(1 + std::log(4) / std::log(4096)));
}

TEST(ModelConfigTest, ReadsYarn) {
  const auto config = parse_with(
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
          "beta_fast": 16, "beta_slow": null}})");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto& yarn = config->ropes[0].yarn;
  ASSERT_TRUE(yarn);
  EXPECT_EQ(yarn->factor, 4);
  EXPECT_EQ(yarn->original_max_position_embeddings, 32768);
  EXPECT_EQ(yarn->beta_fast, 16);
  EXPECT_EQ(yarn->beta_slow, 1);
  EXPECT_DOUBLE_EQ(config->ropes[0].attention_factor, 0.1 * std::log(4) + 1);
  const auto scaled =
      parse_with(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8}})");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_EQ(scaled->ropes[0].yarn->original_max_position_embeddings, 131072);
  EXPECT_DOUBLE_EQ(scaled->ropes[0].attention_factor, (0.1 * std::log(4) + 1) / (0.08 * std::log(4) + 1));
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
      const auto config = parse_with(absl::StrCat(R"({"torch_dtype": null, ")", key, R"(": ")", name, "\"}"));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->dtype, dtype) << key << ": " << name;
    }
  }
}

struct Rope {
  const char* keys;
  double theta;
  double linear_factor;
  const char* note; // nullptr: none
};

TEST(ModelConfigTest, RopeInTwoPlacesIsReadAsTransformersReadsIt) {
  const std::vector<Rope> cases{
      {R"({"rope_scaling": null, "rope_parameters": {"rope_theta": 7.0}})", 7, 1, "rope_theta 500000.0 is not used"},
      {R"({"rope_theta": "REMOVED", "rope_scaling": {}, "rope_parameters": {"rope_theta": 7.0}})", 7, 1,
       "rope_scaling is empty ({})"},
      {R"({"rope_theta": "REMOVED", "rope_scaling": false, "rope_parameters": {"rope_theta": 7.0}})", 7, 1,
       "rope_scaling is empty (false)"},
      {R"({"rope_theta": 7.0, "rope_scaling": {}})", 7, 1, nullptr},
      {R"({"rope_theta": "REMOVED", "rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 7.0}})",
       10000, 1, "in the place of rope_parameters"},
      {R"({"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 7.0}})",
       5, 2, "in the place of rope_parameters"},
      {R"({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 7.0}})", 7, 1, nullptr},
      {R"({"rope_theta": 7.0, "rope_parameters": {}})", 7, 1, nullptr},
  };
  for (const Rope& c : cases) {
    Notes notes;
    const auto config = parse_with(c.keys, &notes);
    ASSERT_TRUE(config.ok()) << c.keys << config.status();
    EXPECT_EQ(config->ropes[0].theta, c.theta) << c.keys;
    EXPECT_EQ(config->ropes[0].linear_factor, c.linear_factor) << c.keys;
    ASSERT_EQ(notes.size(), c.note ? 1U : 0U) << c.keys;
    if (c.note != nullptr) {
      EXPECT_THAT(notes[0].text, HasSubstr(c.note)) << c.keys;
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

struct Refused {
  const char* overrides;
  const char* key; // must be named
  const char* found; // must be quoted, or what was expected
};

TEST(ModelConfigTest, WhatIsNotSupportedIsNamed) {
  const std::vector<Refused> cases{
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
  for (const Refused& c : cases) {
    const auto config = parse_with(c.overrides);
    ASSERT_FALSE(config.ok()) << c.overrides;
    EXPECT_THAT(
        std::string(config.status().message()), AllOf(HasSubstr("config.json: "), HasSubstr(c.key), HasSubstr(c.found)))
        << c.overrides;
  }
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
  const auto config = parse_with(R"({"hidden_size": "REMOVED", "mlp_bias": true, "num_experts": 8})");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(
      std::string(config.status().message()),
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

TEST(ModelConfigTest, ReadsExperts) {
  const auto with = [](const std::string& more) { return parse_with(absl::StrCat("{", kExperts, more, "}")); };
  const auto config = with("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kinds.size(), 1U);
  EXPECT_EQ(config->kinds[0].mlp.experts, (models::ExpertsSpec{.count = 16, .per_token = 4, .normalise = true}));
  EXPECT_EQ(config->kinds[0].mlp.width(), 4 * 768);
  EXPECT_TRUE(config->kinds[0].attention.qk_norm);
  EXPECT_EQ(config->router_aux_loss, 0);
  EXPECT_EQ(layers_with_experts(*config), std::vector<bool>(6, true));
  EXPECT_EQ(
      layers_with_experts(*with(R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3])")),
      (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_EQ(with(R"(, "output_router_logits": true, "router_aux_loss_coef": 0.02)")->router_aux_loss, 0.02);
  EXPECT_EQ(with(R"(, "output_router_logits": true, "router_aux_loss_coef": 0)")->router_aux_loss, 0);
  EXPECT_EQ(with(R"(, "output_router_logits": true)")->router_aux_loss, 0.001);
  EXPECT_EQ(with(R"(, "router_aux_loss_coef": 0.02)")->router_aux_loss, 0);
}

TEST(ModelConfigTest, ExpertsHaveTheDefaultsOfTransformers) {
  const auto config = parse_with(R"({"model_type": "qwen3_moe"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kinds[0].mlp.experts, (models::ExpertsSpec{.count = 128, .per_token = 8, .normalise = false}));
  EXPECT_EQ(config->kinds[0].mlp.ffn, 768);
  EXPECT_EQ(
      parse_with(R"({"model_type": "qwen3_moe", "num_key_value_heads": "REMOVED"})")->kinds[0].attention.kv_heads, 4);
}

TEST(ModelConfigTest, ExpertsThatCannotBeAreRefused) {
  const auto refusal = [](const std::string& more) {
    return std::string(parse_with(absl::StrCat("{", kExperts, more, "}")).status().message());
  };
  EXPECT_THAT(
      refusal(R"(, "num_experts_per_tok": 17)"), HasSubstr("num_experts_per_tok: at most the number of experts"));
  EXPECT_THAT(refusal(R"(, "num_local_experts": 8)"), HasSubstr("num_experts: as num_local_experts, 8, is expected"));
  EXPECT_THAT(refusal(R"(, "mlp_only_layers": [6])"), HasSubstr("mlp_only_layers: layers in [0, 5] are expected"));
  EXPECT_THAT(refusal(R"(, "mlp_only_layers": 3)"), HasSubstr("mlp_only_layers: a list of layers is expected"));
  EXPECT_THAT(refusal(R"(, "decoder_sparse_step": 0)"), HasSubstr("decoder_sparse_step"));
  EXPECT_THAT(refusal(R"(, "moe_intermediate_size": 0)"), HasSubstr("moe_intermediate_size"));
  // A family without experts does not know the keys.
  EXPECT_THAT(
      std::string(parse_with(R"({"num_experts": 4})").status().message()), HasSubstr("num_experts: unknown key"));
}

} // namespace
} // namespace distill::hf
