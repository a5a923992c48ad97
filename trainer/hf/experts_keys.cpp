#include "trainer/hf/experts_keys.h"

namespace distill::hf {
namespace {

constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxWidth = int64_t{1} << 24;

} // namespace

void read_experts(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind) {
  // transformers 5 writes the number of experts under the second name.
  const std::optional<int64_t> named = keys.optional_integer("num_experts", 0, kMaxExperts);
  const std::optional<int64_t> local = keys.optional_integer("num_local_experts", 0, kMaxExperts);
  if (named && local && *named != *local) {
    keys.complain("num_experts: as num_local_experts, ", *local, ", is expected, found ", *named);
  }
  models::ExpertsSpec experts{.count = named.value_or(local.value_or(128))};
  experts.per_token = keys.optional_integer("num_experts_per_tok", 1, kMaxExperts).value_or(1);
  experts.normalise = keys.boolean("norm_topk_prob", false);
  const int64_t ffn = keys.optional_integer("moe_intermediate_size", 1, kMaxWidth).value_or(1);
  const KeyReader::Json* coefficient = keys.take("router_aux_loss_coef");
  // Without this key, transformers does not compute the loss.
  if (keys.boolean("output_router_logits", false) && coefficient != nullptr && *coefficient != 0) {
    model.router_aux_loss = keys.number("router_aux_loss_coef", *coefficient, 0, 1e6, 0);
  }
  if (experts.count == 0) {
    return;
  }
  if (experts.per_token > experts.count) {
    keys.complain(
        "num_experts_per_tok: at most the number of experts, ", experts.count, ", is expected, found ",
        experts.per_token);
  }
  kind.mlp.experts = experts;
  kind.mlp.ffn = ffn;
}

std::vector<bool> layers_with_experts(KeyReader& keys, int64_t layers) {
  const int64_t step = keys.optional_integer("decoder_sparse_step", 1, kMaxExperts).value_or(1);
  std::vector<bool> has_experts;
  for (int64_t layer = 0; layer < layers; ++layer) {
    has_experts.push_back((layer + 1) % step == 0);
  }
  const KeyReader::Json* dense = keys.take("mlp_only_layers");
  if (dense != nullptr && !dense->is_array()) {
    keys.complain("mlp_only_layers: a list of layers is expected, found ", KeyReader::text(*dense));
  }
  for (const KeyReader::Json& layer : dense != nullptr && dense->is_array() ? *dense : KeyReader::Json::array()) {
    if (!layer.is_number_integer() || layer < 0 || layer >= layers) {
      keys.complain("mlp_only_layers: layers in [0, ", layers - 1, "] are expected, found ", KeyReader::text(layer));
    } else {
      has_experts[layer.get<size_t>()] = false;
    }
  }
  return has_experts;
}

} // namespace distill::hf
