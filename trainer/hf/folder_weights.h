#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include "trainer/hf/notes.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/text_names.h"
#include "trainer/models/weight_source.h"

namespace distill::hf {

// The safetensors files of one Hugging Face folder.
struct ModelFiles {
  std::vector<SafetensorsFile> files;
  absl::flat_hash_map<std::string, size_t> file_of; // tensor name -> index into files
  absl::flat_hash_set<std::string> unlisted; // tensors that the folder's index does not list
  TextNames text; // how the files name the tensors of the text model

  const TensorInfo* find(const std::string& name) const; // null: no such tensor
};

// Parses the weight_map of a model.safetensors.index.json: tensor name -> name of a file in the same folder. The text
// is not trusted; a path out of the folder is an error. Errors name `source` and the tensor, and show the value that
// was found.
absl::StatusOr<std::map<std::string, std::string>> parse_weight_map(std::string_view text, const std::string& source);

// Opens folder/model.safetensors if it exists, else the shards that folder/model.safetensors.index.json lists, with all
// tensors in them, as transformers and vLLM do: also those that the index does not list, or lists for another shard. It
// is an error if no shard has a listed tensor, if two shards have a tensor with different values, or if there are two
// text models. NotFound: the folder has no weights (has_weights), or a listed shard is missing. `notes`: lines for the
// user.
absl::StatusOr<ModelFiles> open_model_files(const std::string& folder, Notes* notes = nullptr);

// Tells whether a folder has a file of weights, or an index of such files.
bool has_weights(const std::string& folder);

// Opens the folder's files and checks every tensor against `config`. One error lists the names of all tensors that are
// missing, or of another shape or dtype, or that stand inside a part of the model (a block, the embedding, the final
// norm, the head) whose config.json does not describe them. Tensors outside the model (more layers, heads for other
// tasks) and those that it computes (rotary inv_freq) are left out, with a line in `notes`; so are the other parts of a
// multimodal folder (other_parts.h).
absl::StatusOr<std::unique_ptr<models::WeightSource>> open_weights(
    const std::string& folder, const models::ModelConfig& config, Notes* notes = nullptr);

// "a, b, c", sorted; of more than `most` names the first ones and how many more there are.
std::string names_text(std::vector<std::string> names, size_t most);

} // namespace distill::hf
