#include "trainer/hf/qwen3_5.h"

#include "trainer/hf/experts_keys.h"
#include "trainer/models/ops/short_conv_kernel.h"

namespace distill::hf {
namespace {

constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kMaxWidth = int64_t{1} << 24;

} // namespace

void describe_qwen3_5(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind) {
  kind.attention_norms.before->offset = 1;
  kind.mlp_norms.before->offset = 1;
  model.final_norm_offset = 1;
  kind.attention.qk_norm = {.offset = 1};
  kind.attention.output_gate = true;
  // transformers and vLLM have the gate whatever this key says.
  if (!keys.boolean("attn_output_gate", true)) {
    keys.complain("attn_output_gate: true is expected, since attention's output has a gate, found false");
  }
  // The states of the recurrence, and the gate of its output, are computed in one way only.
  for (const auto& [key, expected] :
       {std::pair("mamba_ssm_dtype", "float32"), std::pair("output_gate_type", "swish")}) {
    const KeyReader::Json* value = keys.take(key);
    if (value != nullptr && *value != expected) {
      keys.complain(key, ": \"", expected, "\" is expected, found ", KeyReader::text(*value));
    }
  }
  // Of the part that predicts further tokens, whose tensors are mtp.*
  for (const char* unused : {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}) {
    keys.take(unused);
  }
}

void describe_qwen3_5_moe(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind) {
  describe_qwen3_5(keys, model, kind);
  read_experts(keys, model, kind);
  const int64_t shared = keys.optional_integer("shared_expert_intermediate_size", 1, kMaxWidth).value_or(1);
  if (!kind.mlp.experts) {
    keys.complain("num_experts: at least 1 is expected, since each layer has experts, found 0");
    return;
  }
  if (!keys.boolean("norm_topk_prob", true)) {
    keys.complain("norm_topk_prob: true is expected, since the probabilities are divided by their sum, found false");
  }
  kind.mlp.experts->normalise = true;
  kind.mlp.experts->shared_ffn = shared;
}

void describe_qwen3_5_linear(KeyReader& keys, models::LayerKind& kind) {
  const auto number = [&](const char* key, int64_t most) { return keys.optional_integer(key, 1, most).value_or(1); };
  models::DeltaSpec delta{
      .key_heads = number("linear_num_key_heads", kMaxHeads),
      .value_heads = number("linear_num_value_heads", kMaxHeads),
      .key_dim = number("linear_key_head_dim", kMaxHeadDim),
      .value_dim = number("linear_value_head_dim", kMaxHeadDim),
      .conv_width = number("linear_conv_kernel_dim", models::kMaxConvWidth)};
  if (delta.value_heads % delta.key_heads != 0) {
    keys.complain(
        "linear_num_value_heads: a multiple of linear_num_key_heads (", delta.key_heads, ") is expected, found ",
        delta.value_heads);
    delta.value_heads = delta.key_heads;
  }
  kind.delta = delta;
  kind.attention = {};
}

} // namespace distill::hf
