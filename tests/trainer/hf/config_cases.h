#pragma once

#include <absl/status/statusor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "data/base/json.h"
#include "trainer/hf/config_json.h"

namespace distill::hf {

inline constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
  "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false, "pretraining_tp": 1, "use_cache": true,
  "bos_token_id": 1, "eos_token_id": [1, 2], "initializer_range": 0.02, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.0"})";

// kLlama with some keys replaced or added; "REMOVED" removes the key.
inline absl::StatusOr<models::ModelConfig> parse_with(const std::string& overrides, Notes* notes = nullptr) {
  auto json = nlohmann::ordered_json::parse(kLlama);
  const auto changes = nlohmann::ordered_json::parse(overrides);
  for (const auto& [key, value] : changes.items()) {
    if (value == "REMOVED") {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return parse_model_config(json.dump(), "config.json", {}, notes);
}

// The same, which has to be read.
inline models::ModelConfig read_with(const std::string& overrides, Notes* notes = nullptr) {
  return parse_with(overrides, notes).value();
}

inline std::string error_of(const absl::StatusOr<models::ModelConfig>& config) {
  return config.ok() ? "read" : std::string(config.status().message());
}

struct RefusedConfig {
  const char* overrides;
  const char* key; // must be named
  const char* found; // must be quoted, or what was expected
};

inline void expect_refused(
    const std::vector<RefusedConfig>& cases,
    const std::function<absl::StatusOr<models::ModelConfig>(const std::string&)>& parse) {
  using ::testing::HasSubstr;
  for (const RefusedConfig& c : cases) {
    EXPECT_THAT(
        error_of(parse(c.overrides)),
        ::testing::AllOf(HasSubstr("config.json: "), HasSubstr(c.key), HasSubstr(c.found)))
        << c.overrides;
  }
}

} // namespace distill::hf
