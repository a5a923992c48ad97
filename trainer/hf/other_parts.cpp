#include "trainer/hf/other_parts.h"

#include <algorithm>
#include <filesystem>

#include "data/base/status_macros.h"
#include "trainer/hf/text_config.h"

namespace distill::hf {

int64_t OtherParts::bytes() const {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) {
    total += tensor.info->end - tensor.info->begin;
  }
  return total;
}

absl::StatusOr<std::unique_ptr<OtherParts>> open_other_parts(
    const std::string& folder, const models::ModelConfig& text) {
  if (!is_multimodal_folder(folder) || !has_weights(folder)) {
    return nullptr;
  }
  auto parts = std::make_unique<OtherParts>();
  ASSIGN_OR_RETURN(parts->files, open_model_files(folder));
  const ModelFiles& files = parts->files;
  for (size_t i = 0; i < files.files.size(); ++i) {
    const SafetensorsFile& file = files.files[i];
    for (const auto& [name, info] : file.header().tensors) {
      const std::optional<std::string> own = files.text.own(name);
      // Two files may have the same tensor, of which the first one is read.
      if (files.file_of.at(name) == i && !(own && is_inside(*own, text))) {
        parts->tensors.push_back({name, &file, &info});
      }
    }
  }
  return parts;
}

std::vector<std::string> processor_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* name : {"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}) {
    std::error_code error;
    if (std::filesystem::is_regular_file(std::filesystem::path(folder) / name, error)) {
      found.emplace_back(name);
    }
  }
  return found;
}

} // namespace distill::hf
