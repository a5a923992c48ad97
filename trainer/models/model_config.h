#pragma once

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/models/float8_products.h"

namespace distill::models {

// rope_type llama3 of transformers' modeling_rope_utils.
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const Llama3RopeScaling&) const = default;
};

// Where a block's two norms stand.
enum class NormPlacement {
  kBeforeSublayers, // x + attention(norm(x)), and so the MLP
  kAfterSublayers, // x + norm(attention(x))
};

// Shape and mathematics of a decoder, read from a Hugging Face config.json.
struct ModelConfig {
  std::string model_type; // a family's name in Hugging Face's config.json, such as llama
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  NormPlacement norm_placement = NormPlacement::kBeforeSublayers;
  std::string attn_norm_tensor = "input_layernorm"; // the block's two norms, as tensors of a model folder
  std::string mlp_norm_tensor = "post_attention_layernorm";
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling; // rope_type llama3
  double rope_linear_factor = 1.0; // rope_type linear: frequencies are divided by it
  // Set if some layer attends to a window of tokens only. Sequences up to that length are computed exactly; longer
  // sequences are refused (check_sequence_length, and block_forward).
  std::optional<int64_t> sliding_window;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false; // RMSNorm over head_dim on q and k before RoPE
  double initializer_range = 0.02; // standard deviation of randomly initialised matrices
  std::string dtype = "float32"; // of the stored weights: float32 | float16 | bfloat16
  Float8Products float8; // of a run's configuration, not of the config.json

  bool operator==(const ModelConfig&) const = default;
};

// Refuses sequences for which the result would not be the model's: longer than max_position_embeddings or the attention
// window.
absl::Status check_sequence_length(const ModelConfig& config, int64_t seq_len);

// The precision that the model computes in: "bfloat16", "bfloat16 with 120 of its 128 block products in float8".
std::string precision_text(const ModelConfig& config, c10::ScalarType compute_dtype);

} // namespace distill::models
