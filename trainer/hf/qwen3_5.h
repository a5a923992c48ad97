#pragma once

#include "trainer/hf/key_reader.h"
#include "trainer/models/model_config.h"

// What differs from Llama in the Qwen3.5s, for their rows in families.cpp.
namespace distill::hf {

void describe_qwen3_5(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);
// The same of those with experts.
void describe_qwen3_5_moe(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);
// Their layers of linear_attention, given what describe_qwen3_5 made of a layer.
void describe_qwen3_5_linear(KeyReader& keys, models::LayerKind& kind);

} // namespace distill::hf
