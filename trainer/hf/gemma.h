#pragma once

#include <vector>

#include "trainer/hf/key_reader.h"
#include "trainer/models/model_config.h"

// How the Gemmas differ from Llama: the functions of their rows in families.cpp (Family::describe, describe_full).
namespace distill::hf {

void describe_gemma2(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);
void describe_gemma3(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);
// Of Gemma 4 the dense models, 12B and 31B. Errors name the keys of what the other sizes have beside that.
void describe_gemma4(KeyReader& keys, models::ModelConfig& model, models::LayerKind& kind);
void describe_gemma4_full(KeyReader& keys, const std::vector<int64_t>& layers, models::LayerKind& kind);

} // namespace distill::hf
