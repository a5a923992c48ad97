#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/models/model_config.h"

namespace distill::hf {

// Reads folder/config.json, in the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). Whatever it asks for that is not supported, and every key that is not known, is an error
// that names it; one report holds all of them. NotFoundError: no such file; InvalidArgumentError: everything else.
absl::StatusOr<models::ModelConfig> read_model_config(const std::string& folder);

// The same from the file's text; `source` names it in errors.
absl::StatusOr<models::ModelConfig> parse_model_config(const std::string& json_text, const std::string& source);

} // namespace distill::hf
