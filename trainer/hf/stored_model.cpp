#include "trainer/hf/stored_model.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <algorithm>

namespace distill::hf {
namespace {

constexpr const char* kPrefix = "model.";
constexpr int64_t kCompareChunk = int64_t{1} << 20; // elements

struct StoredTensor {
  const SafetensorsFile* file = nullptr; // null: the files do not have it
  const TensorInfo* info = nullptr;
};

StoredTensor find_stored(const ModelFiles& files, const std::string& name) {
  const auto found = files.file_of.find(stored_name(files, name));
  if (found == files.file_of.end()) {
    return {};
  }
  const SafetensorsFile& file = files.files[found->second];
  return {&file, file.find(found->first)};
}

std::string config_dtype(const std::string& safetensors_dtype) {
  return safetensors_dtype == "BF16" ? "bfloat16" : safetensors_dtype == "F16" ? "float16" : "float32";
}

// Whether the experts of a layer are one tensor or one each: both are in use.
void settle_experts(const ModelFiles& files, models::ModelConfig& config) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    std::optional<models::ExpertsSpec>& experts =
        config.kinds[static_cast<size_t>(config.layers[static_cast<size_t>(layer)])].mlp.experts;
    if (experts && !stored_name(files, absl::StrCat("model.layers.", layer, ".mlp.experts.gate_up_proj")).empty()) {
      experts->stacked_tensors = true;
    }
  }
}

} // namespace

bool is_weight_dtype(std::string_view safetensors_dtype) {
  return safetensors_dtype == "F32" || safetensors_dtype == "F16" || safetensors_dtype == "BF16";
}

std::string stored_name(const ModelFiles& files, const std::string& name) {
  const std::string stored = files.text.stored(name), bare(absl::StripPrefix(name, kPrefix));
  for (const std::string& candidate : {stored, bare, absl::StrCat(kPrefix, name)}) {
    if (files.file_of.contains(candidate)) {
      return candidate;
    }
  }
  return "";
}

bool equal_tensors(
    const SafetensorsFile& one_file, const TensorInfo& one, const SafetensorsFile& other_file,
    const TensorInfo& other) {
  if (one.shape != other.shape || !is_weight_dtype(one.dtype) || !is_weight_dtype(other.dtype)) {
    return false;
  }
  for (int64_t first = 0; first < one.numel(); first += kCompareChunk) {
    // float32 holds every value of the three dtypes.
    const at::Tensor one_part = at::empty({std::min(kCompareChunk, one.numel() - first)}, at::kFloat);
    const at::Tensor other_part = at::empty_like(one_part);
    one_file.copy_elements(one, first, one_part);
    other_file.copy_elements(other, first, other_part);
    if (!at::equal(one_part, other_part)) {
      return false;
    }
  }
  return true;
}

void settle_by_tensors(const std::string& folder, bool has_dtype, models::ModelConfig& config, Notes* notes) {
  const bool has_experts =
      std::any_of(config.kinds.begin(), config.kinds.end(), [](const auto& kind) { return kind.mlp.experts; });
  if (has_dtype && !config.tie_word_embeddings && !has_experts) {
    return;
  }
  const absl::StatusOr<ModelFiles> files = open_model_files(folder);
  if (!files.ok()) {
    return;
  }
  settle_experts(*files, config);
  const StoredTensor embedding = find_stored(*files, kEmbeddingTensor), head = find_stored(*files, kHeadTensor);
  const StoredTensor& table = embedding.file != nullptr ? embedding : head;
  if (!has_dtype && table.file != nullptr && is_weight_dtype(table.info->dtype)) {
    config.dtype = config_dtype(table.info->dtype);
  }
  if (!config.tie_word_embeddings || embedding.file == nullptr || head.file == nullptr ||
      equal_tensors(*embedding.file, *embedding.info, *head.file, *head.info)) {
    return;
  }
  config.tie_word_embeddings = false;
  if (notes != nullptr) {
    notes->push_back(
        {absl::StrCat(
             folder, ": the model is untied: its files have an ", kHeadTensor, " with other values than ",
             kEmbeddingTensor, ", although config.json has tie_word_embeddings: true (transformers decides the same)"),
         /*is_warning=*/true});
  }
}

} // namespace distill::hf
