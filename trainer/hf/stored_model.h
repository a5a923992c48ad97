#pragma once

#include <string>
#include <string_view>

#include "trainer/hf/folder_weights.h"
#include "trainer/hf/notes.h"
#include "trainer/models/model_config.h"

// Corrections of a model's configuration by the folder's tensors, if its config.json is silent or wrong. transformers
// decides in the same way when it loads the folder.
namespace distill::hf {

inline constexpr const char* kEmbeddingTensor = "model.embed_tokens.weight";
inline constexpr const char* kHeadTensor = "lm_head.weight";

bool is_weight_dtype(std::string_view safetensors_dtype); // F32, F16, BF16: the dtypes that weights are read from

// The name under which the files have a tensor of the model: with the prefix that they give to the text model, or its
// own name without or with the prefix "model.", which folders saved from the bare decoder lack. Empty: they do not have
// it.
std::string stored_name(const ModelFiles& files, const std::string& name);

// Tells whether two tensors of weights have the same shape and equal values. Reads both, up to the first difference.
bool equal_tensors(
    const SafetensorsFile& one_file, const TensorInfo& one, const SafetensorsFile& other_file, const TensorInfo& other);

// Corrects `config`, which was read from the folder's config.json: a model whose files have an embedding and an lm_head
// of different values is untied, whatever tie_word_embeddings is; without `has_dtype` its dtype is that of its
// embedding; and experts are stacked where one tensor has those of a layer. A folder whose weights are missing or
// cannot be opened is left to open_weights, which reports it.
void settle_by_tensors(const std::string& folder, bool has_dtype, models::ModelConfig& config, Notes* notes);

} // namespace distill::hf
