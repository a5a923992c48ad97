#pragma once

#include <absl/container/flat_hash_map.h>

#include "trainer/hf/safetensors.h"
#include "trainer/models/weight_source.h"

namespace distill::hf {

// The safetensors files of one Hugging Face folder.
struct ModelFiles {
  std::vector<SafetensorsFile> files;
  absl::flat_hash_map<std::string, size_t> file_of; // tensor name -> index into files

  const TensorInfo* find(const std::string& name) const; // null: no such tensor
};

// The weight_map of a model.safetensors.index.json: tensor name -> name of a file in the same folder. The text is not
// trusted; a path out of the folder is an error. Errors name `source` and the tensor, and say what was found.
absl::StatusOr<std::map<std::string, std::string>> parse_weight_map(std::string_view text, const std::string& source);

// Opens folder/model.safetensors if it exists, else the shards that folder/model.safetensors.index.json lists. It is an
// error if a listed tensor is missing, or if a shard holds a tensor that the index does not list.
absl::StatusOr<ModelFiles> open_model_files(const std::string& folder);

// Opens the folder's files and checks every tensor against `config`. One error lists the names of all tensors that are
// missing, unexpected, or of another shape or dtype. Additional tensors that are known to be harmless (rotary inv_freq,
// the head of a tied model) are mentioned in `notes`.
absl::StatusOr<std::unique_ptr<models::WeightSource>> open_weights(
    const std::string& folder, const models::ModelConfig& config, std::vector<std::string>* notes = nullptr);

} // namespace distill::hf
