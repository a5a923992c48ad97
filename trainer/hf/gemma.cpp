#include "trainer/hf/gemma.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace distill::hf {
namespace {

using models::LayerKind;
using models::ModelConfig;
using models::NormSpec;

// What all Gemmas have: norms before and after the sublayers, which multiply by weight + offset; scaled embeddings;
// GeGLU; a softcap of the logits, if config.json has one.
void describe_gemma(KeyReader& keys, ModelConfig& model, LayerKind& kind, double offset) {
  kind.attention_norms = {
      .before = NormSpec{"input_layernorm", offset}, .after = NormSpec{"post_attention_layernorm", offset}};
  kind.mlp_norms = {
      .before = NormSpec{"pre_feedforward_layernorm", offset}, .after = NormSpec{"post_feedforward_layernorm", offset}};
  model.final_norm_offset = offset;
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden_size));
  kind.mlp.activation = models::Activation::kGeGlu;
  const KeyReader::Json* activation = keys.take("hidden_activation");
  if (activation != nullptr && *activation != "gelu_pytorch_tanh") {
    keys.complain("hidden_activation: \"gelu_pytorch_tanh\" is expected, found ", KeyReader::text(*activation));
  }
  if (const KeyReader::Json* cap = keys.take("final_logit_softcapping")) {
    model.final_softcap = keys.number("final_logit_softcapping", *cap, 0.0, 1e10, 1.0);
  }
}

// The same of Gemma 2 and 3.
void describe_older_gemma(KeyReader& keys, ModelConfig& model, LayerKind& kind) {
  describe_gemma(keys, model, kind, /*offset=*/1);
  if (const KeyReader::Json* scalar = keys.take("query_pre_attn_scalar")) {
    kind.attention.scale = 1 / std::sqrt(keys.number("query_pre_attn_scalar", *scalar, 0.0, 1e9, 1.0));
  }
  if (keys.boolean("use_bidirectional_attention", false)) {
    keys.complain("use_bidirectional_attention: false is expected, found true");
  }
}

// The heads of one layer.
struct HeadSizes {
  int64_t head_dim = 0;
  int64_t kv_heads = 0;

  bool operator==(const HeadSizes&) const = default;
};

constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxHeads = int64_t{1} << 24;

// An entry of per_layer_config: what differs from the keys of the whole model.
HeadSizes read_layer_heads(KeyReader& keys, const std::string& name, const KeyReader::Json& entry, HeadSizes sizes) {
  if (!entry.is_object()) {
    keys.complain(name, ": an object is expected, found ", KeyReader::text(entry));
    return sizes;
  }
  for (const auto& [key, value] : entry.items()) {
    const std::string full = absl::StrCat(name, ".", key);
    if (key == "head_dim") {
      sizes.head_dim = keys.as_integer(full, value, 1, kMaxHeadDim).value_or(sizes.head_dim);
    } else if (key == "num_key_value_heads") {
      sizes.kv_heads = keys.as_integer(full, value, 1, kMaxHeads).value_or(sizes.kv_heads);
    } else {
      keys.complain(full, ": head_dim and num_key_value_heads are supported, found ", KeyReader::text(value));
    }
  }
  return sizes;
}

// The heads of the layers without a window, all of which must have the same, by per_layer_config, which transformers
// writes.
HeadSizes read_per_layer_config(
    KeyReader& keys, const KeyReader::Json& object, const std::vector<int64_t>& full, const HeadSizes& others) {
  std::map<int64_t, HeadSizes> sizes;
  if (!object.is_object()) {
    keys.complain("per_layer_config: an object is expected, found ", KeyReader::text(object));
    return others;
  }
  for (const auto& [layer, entry] : object.items()) {
    const std::string name = absl::StrCat("per_layer_config.", layer);
    int64_t index = -1;
    if (!absl::SimpleAtoi(layer, &index) || index < 0) {
      keys.complain(name, ": the number of a layer is expected");
      continue;
    }
    sizes[index] = read_layer_heads(keys, name, entry, others);
    if (sizes[index] != others && std::find(full.begin(), full.end(), index) == full.end()) {
      keys.complain(
          name, ": the heads of the whole model are expected in each layer but those of full_attention, found ",
          KeyReader::text(entry));
    }
  }
  const auto of_layer = [&](int64_t layer) { return sizes.contains(layer) ? sizes.at(layer) : others; };
  for (const int64_t layer : full) {
    if (of_layer(layer) != of_layer(full.front())) {
      keys.complain(
          "per_layer_config: the same heads are expected in all layers of full_attention, found others in layers ",
          full.front(), " and ", layer);
      break;
    }
  }
  return of_layer(full.empty() ? -1 : full.front());
}

} // namespace

void describe_gemma2(KeyReader& keys, ModelConfig& model, LayerKind& kind) {
  describe_older_gemma(keys, model, kind);
  if (const KeyReader::Json* cap = keys.take("attn_logit_softcapping")) {
    kind.attention.softcap = keys.number("attn_logit_softcapping", *cap, 0.0, 1e10, 1.0);
  }
}

void describe_gemma3(KeyReader& keys, ModelConfig& model, LayerKind& kind) {
  describe_older_gemma(keys, model, kind);
  kind.attention.qk_norm = {.offset = 1};
}

void describe_gemma4(KeyReader& keys, ModelConfig& model, LayerKind& kind) {
  describe_gemma(keys, model, kind, /*offset=*/0);
  kind.attention.qk_norm.emplace();
  kind.attention.v_norm = true;
  kind.attention.scale = 1;
  kind.scaled_output = true;
  if (keys.boolean("enable_moe_block", false)) {
    keys.complain("enable_moe_block: false is expected, since Gemma 4's experts are not supported, found true");
  }
  for (const auto& [key, what] :
       {std::pair("hidden_size_per_layer_input", "Gemma 4's embeddings of layers"),
        std::pair("num_kv_shared_layers", "layers that share keys and values")}) {
    const KeyReader::Json* value = keys.take(key);
    if (value != nullptr && *value != 0) {
      keys.complain(
          key, ": 0 is expected, since ", what, " are not supported, found ", KeyReader::text(*value),
          keys.is_default(key) ? ", the default of transformers' class" : "");
    }
  }
  for (const char* unused :
       {"vocab_size_per_layer_input", "num_experts", "top_k_experts", "moe_intermediate_size", "use_double_wide_mlp"}) {
    keys.take(unused); // of the parts that are refused above
  }
  for (const char* type : {"full_attention", "sliding_attention"}) {
    const KeyReader::Json* ropes = keys.take("rope_parameters");
    if (ropes == nullptr || !ropes->is_object() || KeyReader::take(*ropes, type) == nullptr) {
      keys.complain("rope_parameters.", type, ": missing; an object is expected");
    }
  }
  // "vision": tokens of one image see one another, those of a text see the ones before them.
  const KeyReader::Json* bidirectional = keys.take("use_bidirectional_attention");
  if (bidirectional != nullptr && *bidirectional != "vision") {
    keys.complain(
        "use_bidirectional_attention: null or \"vision\" is expected, found ", KeyReader::text(*bidirectional));
  }
}

void describe_gemma4_full(KeyReader& keys, const std::vector<int64_t>& layers, LayerKind& kind) {
  models::AttentionSpec& attention = kind.attention;
  attention.keys_are_values = keys.boolean("attention_k_eq_v", false);
  const int64_t head_dim = keys.optional_integer("global_head_dim", 1, kMaxHeadDim).value_or(512);
  const std::optional<int64_t> kv_heads = keys.optional_integer("num_global_key_value_heads", 1, kMaxHeads);
  HeadSizes sizes{head_dim, attention.keys_are_values && kv_heads ? *kv_heads : attention.kv_heads};
  if (const KeyReader::Json* object = keys.take("per_layer_config")) {
    sizes = read_per_layer_config(keys, *object, layers, {attention.head_dim, attention.kv_heads});
  }
  attention.head_dim = sizes.head_dim;
  attention.kv_heads = sizes.kv_heads;
  if (attention.head_dim % 2 != 0 || attention.heads % attention.kv_heads != 0) {
    keys.complain(
        "global_head_dim, num_global_key_value_heads: an even number and a divisor of num_attention_heads (",
        attention.heads, ") are expected, found ", attention.head_dim, " and ", attention.kv_heads);
  }
}

} // namespace distill::hf
