#pragma once

#include <absl/container/flat_hash_map.h>

#include "trainer/models/safetensors.h"
#include "trainer/models/weights.h"

namespace distill::models {

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

} // namespace distill::models
