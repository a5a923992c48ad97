#pragma once

#include <absl/status/status.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::trainer {

// The folder of the trained student in the run folder.
std::string trained_model_folder(const config::Config& config);

// Writes the student to that folder in Hugging Face's format, in checkpoint.model_dtype. All ranks must call it, since
// the units are all-gathered; rank 0 writes. Returns the same status on all ranks.
absl::Status save_trained_model(
    const config::Config& config, sharding::ModelShards& student, const sharding::Mesh& mesh);

} // namespace distill::trainer
