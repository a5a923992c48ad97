#pragma once

#include "tests/trainer/models/llama_like.h"

// Kinds of layers as the families have them, for tests.
namespace distill::models {

inline LayerKind kind_of(bool qkv_bias, bool qk_norm, LayerKind kind = {}) {
  kind.attention.qkv_bias = qkv_bias;
  if (qk_norm) {
    kind.attention.qk_norm.emplace();
  }
  return kind;
}

// Norms before and after each sublayer.
inline LayerKind with_all_norms(LayerKind kind) {
  kind.attention_norms.after = NormSpec{"post_self_attention_layernorm"};
  kind.mlp_norms.after = NormSpec{"post_feedforward_layernorm"};
  return kind;
}

inline LayerKind with_scale(double scale) {
  LayerKind kind;
  kind.attention.scale = scale;
  return kind;
}

inline LayerKind with_window(int64_t window, LayerKind kind = {}) {
  kind.attention.window = window;
  return kind;
}

// Gemma 3's: norms that multiply by 1 + weight, GeGLU.
inline LayerKind gemma_kind() {
  LayerKind kind = with_all_norms(with_window(7, kind_of(false, true)));
  for (SublayerNorms* norms : {&kind.attention_norms, &kind.mlp_norms}) {
    norms->before->offset = norms->after->offset = 1;
  }
  kind.attention.qk_norm->offset = 1;
  kind.mlp.activation = Activation::kGeGlu;
  return kind;
}

// Gemma 4's layers without a window: no projection of v, which has a norm without a weight; a scaled output.
inline LayerKind gemma4_kind() {
  LayerKind kind = with_all_norms(kind_of(false, true));
  kind.mlp.activation = Activation::kGeGlu;
  kind.attention.scale = 1;
  kind.attention.v_norm = true;
  kind.attention.keys_are_values = true;
  kind.scaled_output = true;
  return kind;
}

// Gemma 4's layers with a window.
inline LayerKind gemma4_sliding_kind() {
  LayerKind kind = with_window(7, gemma4_kind());
  kind.attention.keys_are_values = false;
  return kind;
}

inline LayerKind with_softcap(double softcap, LayerKind kind = {}) {
  kind.attention.softcap = softcap;
  return kind;
}

// OLMo's: norms of all heads at once.
inline LayerKind olmo_kind() {
  LayerKind kind = with_norms_after(kind_of(false, true));
  kind.attention.qk_norm->whole = true;
  return kind;
}

inline LayerKind without_rope(LayerKind kind = {}) {
  kind.attention.rope.reset();
  return kind;
}

inline LayerKind with_experts(ExpertsSpec experts, LayerKind kind = {}) {
  kind.mlp.experts = experts;
  return kind;
}

// Qwen3.5's full layers: the output has a gate, norms multiply by 1 + weight.
inline LayerKind gated_attention_kind() {
  LayerKind kind = kind_of(false, true);
  kind.attention_norms.before->offset = kind.mlp_norms.before->offset = 1;
  kind.attention.qk_norm->offset = 1;
  kind.attention.output_gate = true;
  return kind;
}

// Its other layers, in small.
inline LayerKind delta_kind(LayerKind kind = {}) {
  kind.delta = DeltaSpec{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 6};
  return kind;
}

inline LayerKind attention_norm_only() {
  LayerKind kind;
  kind.mlp_norms = {};
  return kind;
}

} // namespace distill::models
