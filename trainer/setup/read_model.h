#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "trainer/config/config.h"
#include "trainer/hf/notes.h"
#include "trainer/models/model_config.h"
#include "trainer/step/environment.h"
#include "trainer/teacher_cache/row_format.h"

namespace distill::trainer {

// The shape of a model from its folder's config.json, with the precision that the run gives it. `name`: of the section,
// for errors: "teacher". `notes`: lines for the user (hf/notes.h). InvalidArgument: the folder, or products that cannot
// run in float8.
absl::StatusOr<models::ModelConfig> read_model(
    const config::ModelSection& section, const std::string& name, hf::Notes* notes = nullptr);

// The same of the teacher that a run loads: all of it, or what the folder of a cache has of it. nullopt: no teacher.
absl::StatusOr<std::optional<models::ModelConfig>> read_teacher(const config::Config& config);

// How the teacher's rows are stored; nullopt: they are not. `teacher`: its shape. NotFound, DataLoss or
// FailedPrecondition: the folder teacher.cache.
absl::StatusOr<std::optional<teacher_cache::RowFormat>> read_cached_rows(
    const config::Config& config, const Environment& environment, const models::ModelConfig* teacher);

} // namespace distill::trainer
