#pragma once

#include "trainer/hf/key_reader.h"
#include "trainer/models/model_config.h"

namespace distill::hf {

// Reads rope_theta, rope_parameters and rope_scaling, after max_position_embeddings.
void read_rope(KeyReader& keys, models::ModelConfig& config);

} // namespace distill::hf
