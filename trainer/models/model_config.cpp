#include "trainer/models/model_config.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "trainer/models/layout.h"

namespace distill::models {

AttentionOptions AttentionSpec::options() const {
  return {.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))), .window = window};
}

int64_t ModelConfig::count_of(int64_t kind) const {
  return std::count(layers.begin(), layers.end(), kind);
}

void ModelConfig::set_layers(LayerKind kind, int64_t count) {
  kinds = {std::move(kind)};
  layers.assign(static_cast<size_t>(count), 0);
}

absl::Status check_computable(const ModelConfig& config) {
  const auto missing = [](auto... what) {
    return absl::UnimplementedError(absl::StrCat(what..., " is not supported"));
  };
  for (const LayerKind& kind : config.kinds) {
    if (kind.attention.softcap != 0) {
      return missing("attention whose scores are capped at ", kind.attention.softcap);
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

std::string precision_text(const ModelConfig& config, c10::ScalarType compute_dtype) {
  std::string text = compute_dtype == c10::ScalarType::Float ? "float32" : "bfloat16";
  if (config.float8.any()) {
    int64_t all = 0;
    for (const std::vector<std::string>& products : block_products(config)) {
      all += static_cast<int64_t>(products.size());
    }
    const int64_t float8 = config.float8.count();
    const std::string count = float8 == all ? absl::StrCat("all ", all) : absl::StrCat(float8, " of its ", all);
    absl::StrAppend(&text, " with ", count, " block products in float8");
  }
  return text;
}

} // namespace distill::models
