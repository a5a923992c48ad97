#pragma once

#include "trainer/models/model_config.h"

namespace distill::models {

// The numbers of a decoder all of whose layers are alike.
struct DecoderShape {
  int64_t vocab = 40;
  int64_t hidden = 16;
  int64_t ffn = 24;
  int64_t layers = 2;
  int64_t heads = 2;
  int64_t kv_heads = 1;
  int64_t head_dim = 8;
  int64_t max_positions = 0;
};

// A model of Llama's family. `kind`: what differs from it, but for the numbers.
inline ModelConfig llama_like(const DecoderShape& shape, LayerKind kind = {}) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = shape.vocab;
  config.hidden_size = shape.hidden;
  config.max_position_embeddings = shape.max_positions;
  kind.attention.heads = shape.heads;
  kind.attention.kv_heads = shape.kv_heads;
  kind.attention.head_dim = shape.head_dim;
  kind.mlp.ffn = shape.ffn;
  config.set_layers(std::move(kind), shape.layers);
  config.ropes = {{.dim = shape.head_dim}};
  return config;
}

// Norms of the sublayers' outputs instead of their inputs, as EXAONE 4 has them.
inline LayerKind with_norms_after(LayerKind kind = {}) {
  kind.attention_norms = {.before = {}, .after = NormSpec{"post_attention_layernorm"}};
  kind.mlp_norms = {.before = {}, .after = NormSpec{"post_feedforward_layernorm"}};
  return kind;
}

} // namespace distill::models
