#pragma once

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::trainer {

// The folder of the trained student in the run folder.
std::string trained_model_folder(const config::Config& config);

// Ok where that folder holds a whole model that was written after the file `since`, the marker of the last checkpoint.
absl::Status check_trained_model(const config::Config& config, const std::string& since);

// Writes the student to `folder` in Hugging Face's format, in `dtype`, and replaces what is there; a student with
// adapters with these in its weights, which are read from its folder once more. `in_place`: as
// hf::SaveOptions::in_place. All ranks must call it; one unit at a time is all-gathered, and rank 0 writes. `task` is
// what the progress line says. Returns the same status on all ranks.
absl::Status write_student(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh,
    const std::string& folder, at::ScalarType dtype, const char* task, bool in_place = false);

// The same to the folder of the trained student, in checkpoint.model_dtype. Of a student with adapters, the adapters
// alone in peft's format, unless student.lora.merge is true.
absl::Status save_trained_model(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh);

} // namespace distill::trainer
