#pragma once

#include <vector>

#include "trainer/hf/families.h"

namespace distill::hf {

// Reads the keys about RoPE of a config.json, in the spellings of transformers 4 and 5: the rope of all layers or, in a
// family with a rope by layer type, that of full_attention, then that of sliding_attention. `context`:
// max_position_embeddings. `full_head_dim`: of layers without a window.
std::vector<models::RopeSpec> read_ropes(
    KeyReader& keys, const FamilyRope& family, int64_t context, int64_t head_dim, int64_t full_head_dim);

} // namespace distill::hf
