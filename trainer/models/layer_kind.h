#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/base/enum_names.h"

// What a decoder layer computes. A layer has two sublayers, attention and MLP; each reads the residual stream, or an
// RMSNorm of it, and adds its output, or an RMSNorm of its output, to the stream.
namespace distill::models {

// An RMSNorm over the hidden size.
struct NormSpec {
  std::string tensor; // in a model folder, after "model.layers.N." and before ".weight"
  double offset = 0; // the output is multiplied by weight + offset

  bool operator==(const NormSpec&) const = default;
};

// The norms of a sublayer's input and of its output; nullopt: there is none.
struct SublayerNorms {
  std::optional<NormSpec> before;
  std::optional<NormSpec> after;

  bool operator==(const SublayerNorms&) const = default;
};

// Causal attention with grouped queries.
struct AttentionSpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<double> scale; // of the scores; nullopt: 1 / sqrt(head_dim)
  // A token attends to the last `window` tokens, itself included. Sequences of up to that length are computed exactly;
  // longer ones are refused (longest_sequence, and attention_layer_forward).
  std::optional<int64_t> window;
  double softcap = 0; // of the scores; 0: none
  bool qkv_bias = false;
  bool qk_norm = false; // RMSNorm over head_dim on q and k before RoPE
  std::optional<int64_t> rope = 0; // index into ModelConfig::ropes; nullopt: the layer has no RoPE

  int64_t query_width() const {
    return heads * head_dim;
  }
  int64_t key_value_width() const {
    return kv_heads * head_dim;
  }
  int64_t qkv_width() const {
    return query_width() + 2 * key_value_width();
  }
  double score_scale() const;
  // How many tokens a token of a sequence of this length attends to, on average: half of them. FLOPs and step times
  // count by it.
  double attended_tokens(int64_t seq_len) const {
    return static_cast<double>(seq_len) / 2;
  }
  bool operator==(const AttentionSpec&) const = default;
};

enum class Activation {
  kSwiGlu, // silu(gate) * up
};
constexpr auto enum_names(Activation) {
  return base::names_of<Activation>("swiglu");
}

// A gated MLP: down(activation(gate, up)).
struct MlpSpec {
  Activation activation = Activation::kSwiGlu;
  int64_t ffn = 0; // outputs of gate and of up

  int64_t width() const { // elements of the gated product that a token has
    return ffn;
  }
  bool operator==(const MlpSpec&) const = default;
};

// Layers of one kind have the same shapes and the same mathematics. The defaults are Llama's.
struct LayerKind {
  SublayerNorms attention_norms{.before = NormSpec{"input_layernorm"}, .after = {}};
  AttentionSpec attention;
  SublayerNorms mlp_norms{.before = NormSpec{"post_attention_layernorm"}, .after = {}};
  MlpSpec mlp;
  double norm_eps = 1e-6; // of all of the layer's norms, those of q and k included

  bool operator==(const LayerKind&) const = default;
};

// rope_type llama3 of transformers' modeling_rope_utils.
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;

  bool operator==(const Llama3RopeScaling&) const = default;
};

// A rotary position embedding.
struct RopeSpec {
  double theta = 10000.0;
  int64_t dim = 0; // elements of a head that are rotated, the first ones
  double linear_factor = 1.0; // rope_type linear: frequencies are divided by it
  std::optional<Llama3RopeScaling> llama3;

  bool operator==(const RopeSpec&) const = default;
};

} // namespace distill::models
