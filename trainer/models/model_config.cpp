#include "trainer/models/model_config.h"

namespace distill::models {

absl::Status check_sequence_length(const ModelConfig& config, int64_t seq_len) {
  if (seq_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequences of ", seq_len, " tokens are longer than the model's max_position_embeddings (",
        config.max_position_embeddings, ")"));
  }
  if (config.sliding_window && seq_len > *config.sliding_window) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequences of ", seq_len, " tokens are longer than the model's sliding_window (", *config.sliding_window, ")"));
  }
  return absl::OkStatus();
}

std::string precision_text(const ModelConfig& config, c10::ScalarType compute_dtype) {
  std::string text = compute_dtype == c10::ScalarType::Float ? "float32" : "bfloat16";
  if (config.float8.any()) {
    const int64_t all = config.num_layers * kProducts, float8 = config.float8.count();
    const std::string count = float8 == all ? absl::StrCat("all ", all) : absl::StrCat(float8, " of its ", all);
    absl::StrAppend(&text, " with ", count, " block products in float8");
  }
  return text;
}

} // namespace distill::models
