#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/models/model_config.h"

namespace distill::hf {

// Reads folder/config.json in the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). Settings that are not supported and unknown keys are errors; one report lists all of them.
// `ignored`: keys that are not known here and that the user says do not change the mathematics. NotFound: there is no
// such file. InvalidArgument: all other errors.
absl::StatusOr<models::ModelConfig> read_model_config(
    const std::string& folder, const std::vector<std::string>& ignored = {});

// The same from the text of the file. Errors begin with `source`.
absl::StatusOr<models::ModelConfig> parse_model_config(
    const std::string& json_text, const std::string& source, const std::vector<std::string>& ignored = {});

} // namespace distill::hf
