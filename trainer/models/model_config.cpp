#include "trainer/models/model_config.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "trainer/models/layout.h"

namespace distill::models {
namespace {

std::optional<int64_t> shortest_window(const ModelConfig& config) {
  std::optional<int64_t> shortest;
  for (const int64_t kind : config.layers) {
    if (const auto& window = config.kinds[static_cast<size_t>(kind)].attention.window; window) {
      shortest = std::min(*window, shortest.value_or(*window));
    }
  }
  return shortest;
}

} // namespace

double AttentionSpec::score_scale() const {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
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
  if (config.embedding_scale != 1) {
    return missing("an embedding that is multiplied by ", config.embedding_scale);
  }
  for (const LayerKind& kind : config.kinds) {
    for (const auto& norm :
         {kind.attention_norms.before, kind.attention_norms.after, kind.mlp_norms.before, kind.mlp_norms.after}) {
      if (norm && norm->offset != 0) {
        return missing("an RMSNorm that multiplies by weight + ", norm->offset, " (", norm->tensor, ")");
      }
    }
    if (kind.attention.softcap != 0) {
      return missing("attention whose scores are capped at ", kind.attention.softcap);
    }
    if (!kind.attention.rope) {
      return missing("a layer without RoPE");
    }
    if (const int64_t dim = config.ropes.at(static_cast<size_t>(*kind.attention.rope)).dim;
        dim != kind.attention.head_dim) {
      return missing("RoPE of ", dim, " of the ", kind.attention.head_dim, " elements of a head");
    }
  }
  return absl::OkStatus();
}

int64_t longest_sequence(const ModelConfig& config) {
  return std::min(config.max_position_embeddings, shortest_window(config).value_or(config.max_position_embeddings));
}

absl::Status check_sequence_length(const ModelConfig& config, int64_t seq_len) {
  if (seq_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequences of ", seq_len, " tokens are longer than the model's max_position_embeddings (",
        config.max_position_embeddings, ")"));
  }
  if (const auto window = shortest_window(config); window && seq_len > *window) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences of ", seq_len, " tokens are longer than the model's sliding_window (", *window, ")"));
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
