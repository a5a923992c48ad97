#pragma once

#include <absl/status/status.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::trainer {

// The folder of the trained student in the run folder.
std::string trained_model_folder(const config::Config& config);

// Ok where that folder holds a whole model that was written after the file `since`, the marker of the last checkpoint.
absl::Status check_trained_model(const config::Config& config, const std::string& since);

// Writes the student to that folder in Hugging Face's format, in checkpoint.model_dtype. All ranks must call it, since
// the units are all-gathered; rank 0 writes. Returns the same status on all ranks.
absl::Status save_trained_model(
    const config::Config& config, sharding::ModelShards& student, const sharding::Mesh& mesh);

} // namespace distill::trainer
