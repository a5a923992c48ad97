#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::cli {

// Descriptions for `distill inspect`, several lines each.

// A Hugging Face folder: shape, parameters by unit, dtype, files, tokenizer. Its tensors are checked against the shape.
absl::StatusOr<std::string> describe_model(const std::string& folder);

// A run folder: what was trained from what, how far it came, its last metrics, its checkpoints.
absl::StatusOr<std::string> describe_run(const std::string& folder);

// One folder of a run's checkpoints/.
absl::StatusOr<std::string> describe_checkpoint(const std::string& folder);

} // namespace distill::cli
