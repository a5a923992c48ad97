#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/base/enum_names.h"
#include "trainer/models/ops/attention_options.h"

// What a decoder layer computes. A layer has two sublayers, attention (or what is in its place) and MLP; each reads the
// residual stream, or an RMSNorm of it, and adds its output, or an RMSNorm of its output, to the stream.
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

// RMSNorms on q and k before RoPE.
struct QkNormSpec {
  bool whole = false; // over all of a token's heads at once; false: over each head
  double offset = 0; // as of a NormSpec

  bool operator==(const QkNormSpec&) const = default;
};

// Causal attention with grouped queries.
struct AttentionSpec {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  std::optional<double> scale; // of the scores; nullopt: 1 / sqrt(head_dim)
  std::optional<int64_t> window; // a token attends to itself and the window - 1 tokens before it; nullopt: to all
  double softcap = 0; // of the scores; 0: none
  bool qkv_bias = false;
  std::optional<QkNormSpec> qk_norm;
  bool v_norm = false; // an RMSNorm without a weight over each head of v
  bool keys_are_values = false; // there is no projection of v: its place is taken by k's, before k's norm and RoPE
  // The output is multiplied by the sigmoid of a gate. The projection of q has the gates, too: the rows of a head's
  // query, then those of its gate.
  bool output_gate = false;
  std::optional<int64_t> rope = 0; // index into ModelConfig::ropes; nullopt: the layer has no RoPE

  int64_t query_width() const {
    return heads * head_dim;
  }
  int64_t key_value_width() const {
    return kv_heads * head_dim;
  }
  int64_t query_rows() const { // of the projection of q
    return query_width() * (output_gate ? 2 : 1);
  }
  int64_t qkv_width() const {
    return query_rows() + (keys_are_values ? 1 : 2) * key_value_width();
  }
  AttentionOptions options() const;
  // How many tokens a token of a sequence of this length attends to, on average: half of them, or with a shorter window
  // w of n tokens w - w^2 / 2n. FLOPs and step times count by it.
  double attended_tokens(int64_t seq_len) const {
    const auto length = static_cast<double>(seq_len);
    const double seen = window ? std::min(length, static_cast<double>(*window)) : length;
    return seen - seen * seen / (2 * length);
  }
  bool operator==(const AttentionSpec&) const = default;
};

// A gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a recurrence along a document, in attention's place.
// q, k and v pass through a causal convolution and SiLU. Each value head has a state, a matrix of key_dim x value_dim
// numbers, which starts at zero with each document (ops/delta_rule.h). Its output is normalised and gated.
struct DeltaSpec {
  int64_t key_heads = 0; // of q and of k; several value heads may share one
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_width = 4; // tokens that an output of the convolution sees, itself included

  int64_t key_width() const {
    return key_heads * key_dim;
  }
  int64_t value_width() const {
    return value_heads * value_dim;
  }
  int64_t conv_channels() const { // q, k, v
    return 2 * key_width() + value_width();
  }
  // Operations of a forward pass for one token: reading the state by k, writing to it, reading it by q.
  double rule_flops() const {
    return 6.0 * static_cast<double>(value_width()) * static_cast<double>(key_dim);
  }
  bool operator==(const DeltaSpec&) const = default;
};

// The activation of a gated MLP, gate and up being its two inputs.
enum class Activation {
  kSwiGlu, // silu(gate) * up
  kGeGlu, // gelu(gate) * up, gelu by its approximation with tanh
};
constexpr auto enum_names(Activation) {
  return base::names_of<Activation>("swiglu", "geglu");
}

// Several MLPs of one shape in the place of one. A router ranks them for each token, and the token's output is the sum
// of those of the experts that it ranks first, each times the router's probability of it. No token is left out, however
// many choose one expert.
struct ExpertsSpec {
  int64_t count = 0;
  int64_t per_token = 0; // experts that a token visits
  bool normalise = false; // the probabilities of a token's experts are divided by their sum
  // Of a further expert, outputs of gate and of up: each token visits it, and its output is multiplied by the sigmoid
  // of a product of the token with a vector. 0: there is none.
  int64_t shared_ffn = 0;
  bool stacked_tensors = false; // in a model folder all experts' gate and up are one tensor, and down another

  bool operator==(const ExpertsSpec&) const = default;
};

// A gated MLP: down(activation(gate, up)).
struct MlpSpec {
  Activation activation = Activation::kSwiGlu;
  int64_t ffn = 0; // outputs of gate and of up; of each expert, if there are experts
  std::optional<ExpertsSpec> experts; // nullopt: one MLP for all tokens

  int64_t width() const { // elements of the gated product that a token has
    return ffn * (experts ? experts->per_token : 1);
  }
  bool operator==(const MlpSpec&) const = default;
};

// Layers of one kind have the same shapes and the same mathematics. The defaults are Llama's.
struct LayerKind {
  SublayerNorms attention_norms{.before = NormSpec{"input_layernorm"}, .after = {}};
  AttentionSpec attention;
  std::optional<DeltaSpec> delta; // in attention's place, whose description then says nothing; nullopt: attention
  SublayerNorms mlp_norms{.before = NormSpec{"post_attention_layernorm"}, .after = {}};
  MlpSpec mlp;
  double norm_eps = 1e-6; // of all of the layer's norms, those of q and k included
  bool scaled_output = false; // the layer's output is multiplied by a number of its own, which is not trained
  bool fused_tensors = false; // in a model folder q, k, v are one tensor, qkv_proj, and gate, up another, gate_up_proj

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

// rope_type yarn of transformers' modeling_rope_utils (Peng et al. 2023).
struct YarnRopeScaling {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncate = true; // the ramp between the two begins and ends at whole elements
  int64_t original_max_position_embeddings = 0;

  bool operator==(const YarnRopeScaling&) const = default;
};

// rope_type longrope of transformers' modeling_rope_utils (Ding et al. 2024): each frequency is divided by its factor.
// A document of more than original_max_position_embeddings tokens takes long_factors, a shorter one short_factors.
struct LongRopeScaling {
  std::vector<double> short_factors; // [dim / 2]
  std::vector<double> long_factors;
  int64_t original_max_position_embeddings = 0;

  bool operator==(const LongRopeScaling&) const = default;
};

// After the rotation q is multiplied by 1 + beta log(1 + floor(position / original_max_position_embeddings)).
struct QueryScaling {
  double beta = 0;
  int64_t original_max_position_embeddings = 0;

  bool operator==(const QueryScaling&) const = default;
};

// A rotary position embedding. At most one of the scalings is set.
struct RopeSpec {
  double theta = 10000.0;
  int64_t dim = 0; // elements of a head that are rotated, the first ones
  double linear_factor = 1.0; // rope_type linear: frequencies are divided by it
  // rope_type proportional: of the dim / 2 pairs of elements only the first ones turn; nullopt: all.
  std::optional<int64_t> turning_pairs;
  std::optional<Llama3RopeScaling> llama3;
  std::optional<YarnRopeScaling> yarn;
  std::optional<LongRopeScaling> longrope;
  double attention_factor = 1.0; // cosines and sines are multiplied by it
  std::optional<QueryScaling> query_scaling;

  bool operator==(const RopeSpec&) const = default;
};

} // namespace distill::models
