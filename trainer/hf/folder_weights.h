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

// The weight_map of a model.safetensors.index.json that is not trusted: tensor name -> name of a file in the same
// folder, which cannot lead out of it. Errors name `source`, the tensor and what was found.
absl::StatusOr<std::map<std::string, std::string>> parse_weight_map(std::string_view text, const std::string& source);

// folder/model.safetensors where it stands, else the shards of folder/model.safetensors.index.json. Every tensor that
// the index promises is there, and no shard holds a tensor that the index does not list.
absl::StatusOr<ModelFiles> open_model_files(const std::string& folder);

// Maps folder/model.safetensors, or the shards that folder/model.safetensors.index.json lists, and checks every tensor
// against `config`: missing, unexpected and wrongly shaped ones are listed by name in one error. Extras that are known
// to be harmless (rotary inv_freq, the head of a tied model) are noted in `notes`.
absl::StatusOr<std::unique_ptr<models::WeightSource>> open_weights(
    const std::string& folder, const models::ModelConfig& config, std::vector<std::string>* notes = nullptr);

} // namespace distill::hf
