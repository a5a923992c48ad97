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

} // namespace distill::models
