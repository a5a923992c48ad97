#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/hf/notes.h"
#include "trainer/models/model_config.h"
#include "trainer/setup/tokenizers.h"
#include "trainer/teacher/teacher_spec.h"

namespace distill::trainer {

// The description of a model from its folder's config.json, with what the run's configuration adds to it: its precision
// and the softcap of its logits. `notes`: lines for the user (hf/notes.h). InvalidArgument: the folder, or products
// that cannot run in float8.
absl::StatusOr<models::ModelConfig> read_student(const config::Config& config, hf::Notes* notes = nullptr);
// The description of the teacher, from its folder or from the part of it that the folder of a cache holds.
absl::StatusOr<models::ModelConfig> read_teacher_model(const config::Config& config, hf::Notes* notes = nullptr);

// A run's teacher, without weights, with the student's vocabulary (TeacherSpec::vocabulary). `notes` and errors as
// read_teacher_model; errors also as teacher_cache::read_manifest and read_tokenizers. `tokenizers`: null: they are
// read.
absl::StatusOr<TeacherSpec> read_teacher(
    const config::Config& config, hf::Notes* notes = nullptr, const RunTokenizers* tokenizers = nullptr);

// All teachers of a run.
absl::StatusOr<Teachers> read_teachers(const config::Config& config);

// Text that identifies a model's shape in checkpoints, caches and messages.
std::string describe_shape(const models::ModelConfig& config);
// A line of the start report. `role`: "student".
std::string describe_model(
    const char* role, const config::ModelSection& section, const models::ModelConfig& config, at::ScalarType dtype);

} // namespace distill::trainer
