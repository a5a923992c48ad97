#pragma once

#include <vector>

#include "trainer/hf/key_reader.h"
#include "trainer/models/model_config.h"

// The keys of models with experts, in the Qwens' spelling.
namespace distill::hf {

// Gives the kind experts, unless their number is 0, and reads the coefficient of the routers' loss.
void read_experts(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);

// Which of the layers have experts (Family::has_experts), by decoder_sparse_step and mlp_only_layers.
std::vector<bool> layers_with_experts(KeyReader& keys, int64_t layers);

} // namespace distill::hf
