#pragma once

#include <absl/status/status.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

namespace distill::trainer {

// Where a run leaves its trained student.
std::string trained_model_folder(const config::Config& config);

// Writes the student there as a Hugging Face folder, in checkpoint.model_dtype. Every rank takes part in gathering; the
// main one writes. The same status on all ranks.
absl::Status save_trained_model(
    const config::Config& config, sharding::ModelShards& student, const sharding::Mesh& mesh);

} // namespace distill::trainer
