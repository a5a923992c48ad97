#pragma once

#include <memory>

#include "trainer/models/model_config.h"
#include "trainer/models/weight_source.h"

namespace distill::models {

// Makes matrices from normal(0, config.initializer_range), norms 1, biases 0. A value depends on the seed, the Hugging
// Face name and the element alone: not on ranks, ranges, order or dtype (before rounding). A GPU generates its own
// values; they differ from the CPU's in the last bits.
std::unique_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed);

} // namespace distill::models
