#include "trainer/models/model_config.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "trainer/models/layout.h"

namespace distill::models {

AttentionOptions AttentionSpec::options() const {
  return {
      .scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))), .window = window, .softcap = softcap};
}

int64_t ModelConfig::count_of(int64_t kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

void ModelConfig::set_layers(LayerKind kind, int64_t count) {
  kinds = {std::move(kind)};
  layers.assign(static_cast<size_t>(count), 0);
}

void ModelConfig::set_layers(const std::vector<LayerKind>& each) {
  kinds.clear();
  layers.clear();
  for (const LayerKind& kind : each) {
    const auto found = std::find(kinds.begin(), kinds.end(), kind);
    layers.push_back(found - kinds.begin());
    if (found == kinds.end()) {
      kinds.push_back(kind);
    }
  }
}

absl::Status check_computable(const ModelConfig& config) {
  const auto missing = [](auto... what) {
    return absl::UnimplementedError(absl::StrCat(what..., " is not supported"));
  };
  for (const LayerKind& kind : config.kinds) {
    const AttentionSpec& attention = kind.attention;
    if (attention.keys_are_values && !(attention.v_norm && attention.qk_norm)) {
      return missing("attention whose keys are its values, without norms of q, k and v,");
    }
  }
  return absl::OkStatus();
}

absl::Status check_sequence_length(const ModelConfig& config, int64_t seq_len) {
  if (seq_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequences of ", seq_len, " tokens are longer than the model's max_position_embeddings (",
        config.max_position_embeddings, ")"));
  }
  return absl::OkStatus();
}

std::string mlp_text(const ModelConfig& config) {
  std::vector<std::pair<MlpSpec, int64_t>> kinds; // and in how many layers
  for (const int64_t layer : config.layers) {
    const MlpSpec& mlp = config.kinds[static_cast<size_t>(layer)].mlp;
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == mlp; });
    found == kinds.end() ? static_cast<void>(kinds.emplace_back(mlp, 1)) : static_cast<void>(++found->second);
  }
  std::string text;
  for (const auto& [mlp, layers] : kinds) {
    absl::StrAppend(&text, text.empty() ? "" : ", ");
    if (mlp.experts) {
      absl::StrAppend(&text, mlp.experts->count, " experts of ");
    }
    absl::StrAppend(&text, "ffn ", mlp.ffn);
    if (kinds.size() > 1) {
      absl::StrAppend(&text, " in ", layers, " layers");
    }
    if (mlp.experts) {
      absl::StrAppend(&text, ", ", mlp.experts->per_token, " for each token");
      if (mlp.experts->shared_ffn > 0) {
        absl::StrAppend(&text, ", a shared one of ffn ", mlp.experts->shared_ffn);
      }
    }
  }
  return text;
}

std::string precision_text(const ModelConfig& config, c10::ScalarType compute_dtype) {
  std::string text = compute_dtype == c10::ScalarType::Float ? "float32" : "bfloat16";
  if (config.float8.any()) {
    int64_t all = 0;
    for (const std::vector<std::string>& products : block_products(config)) {
      all += static_cast<int64_t>(products.size());
    }
    const int64_t float8 = config.float8.count();
    const std::string count = float8 == all ? absl::StrCat("all ", all) : absl::StrCat(float8, " of its ", all);
    absl::StrAppend(
        &text, " with ", count, " block products in float8",
        config.float8_weight_gradients ? ", those of their weights' gradients too" : "");
  }
  if (std::any_of(config.kinds.begin(), config.kinds.end(), [](const LayerKind& kind) { return kind.mlp.experts; })) {
    absl::StrAppend(&text, ", routers in float32");
  }
  return text;
}

} // namespace distill::models
