#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/models/model_config.h"

namespace distill::trainer {

// The shape of a model from its folder's config.json, with the precision that the run gives it. `name`: of the section,
// for errors: "teacher". InvalidArgument: the folder, or products that cannot run in float8.
absl::StatusOr<models::ModelConfig> read_model(const config::ModelSection& section, const std::string& name);

} // namespace distill::trainer
