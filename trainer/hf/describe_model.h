#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::hf {

// Describes a Hugging Face folder as text: architecture, shapes, number of parameters, stored dtypes, files, bytes and
// notes. Tensors that do not match config.json are an error that lists them. A folder may lack weights, which the text
// then mentions.
absl::StatusOr<std::string> describe_model(const std::string& folder);

} // namespace distill::hf
