#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/hf/notes.h"
#include "trainer/models/model_config.h"

namespace distill::hf {

struct ConfigOptions {
  std::vector<std::string> ignored; // unknown keys that, by the user's word, do not change the mathematics
  // True: the model has the folder's weights, which then decide what config.json does not (stored_model.h). False: it
  // has random ones.
  bool with_weights = true;
};

// Reads folder/config.json in the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). If keys contradict each other or are missing, the model is the one that transformers
// computes, and `notes` receives a line about it. Settings that are not supported and unknown keys are errors; one
// report lists all of them. NotFound: there is no such file. InvalidArgument: all other errors.
absl::StatusOr<models::ModelConfig> read_model_config(
    const std::string& folder, const ConfigOptions& options = {}, Notes* notes = nullptr);

// Reads the configuration from the text of the file alone. Errors and notes begin with `source`.
absl::StatusOr<models::ModelConfig> parse_model_config(
    const std::string& json_text, const std::string& source, const std::vector<std::string>& ignored = {},
    Notes* notes = nullptr);

} // namespace distill::hf
