#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace distill::models {

// rope_type llama3 of transformers' modeling_rope_utils.
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

// What a decoder's shape and mathematics need, read from a Hugging Face config.json.
struct ModelConfig {
  std::string model_type; // llama | mistral | qwen2 | qwen3
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false; // RMSNorm over head_dim on q and k before RoPE
  std::string dtype = "bfloat16"; // of the stored weights
};

// Reads folder/config.json. Whatever it asks for that is not supported is an error that names it.
absl::StatusOr<ModelConfig> read_model_config(const std::string& folder);

} // namespace distill::models
