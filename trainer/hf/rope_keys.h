#pragma once

#include "trainer/hf/key_reader.h"
#include "trainer/models/layer_kind.h"

namespace distill::hf {

// Reads rope_theta, rope_parameters and rope_scaling. `context`: max_position_embeddings.
void read_rope(KeyReader& keys, int64_t context, models::RopeSpec& rope);

} // namespace distill::hf
