#pragma once

#include <memory>

#include "trainer/models/model_config.h"
#include "trainer/models/weight_source.h"

namespace distill::models {

// A model whose weights are to be read.
struct ModelSource {
  ModelConfig config;
  std::shared_ptr<const WeightSource> weights; // null: weights are not read, as in a simulated run
  std::shared_ptr<const WeightSource> adapter; // of trained_layouts(), where the model has an adapter
};

} // namespace distill::models
