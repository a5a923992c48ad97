#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/hf/folder_weights.h"
#include "trainer/models/model_config.h"

// The parts of a multimodal folder that are not its text model: what a saved model keeps of them, byte for byte.
namespace distill::hf {

struct OtherParts {
  // A tensor of a file, with its name there.
  struct Tensor {
    std::string name;
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
  };

  ModelFiles files; // they are mapped, and hold the tensors
  std::vector<Tensor> tensors; // in the order of the files; those of the text model are not among them

  int64_t bytes() const;
};

// Null: the folder has a text model alone, or no weights. `text`: the folder's text model. Errors as open_model_files.
absl::StatusOr<std::unique_ptr<OtherParts>> open_other_parts(
    const std::string& folder, const models::ModelConfig& text);

// The names of the files in a multimodal folder that prepare its inputs other than text.
std::vector<std::string> processor_files(const std::string& folder);

} // namespace distill::hf
