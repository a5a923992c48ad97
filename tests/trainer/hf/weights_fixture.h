#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/trainer/hf/temporary_folder.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/save_model.h"
#include "trainer/models/random_weights.h"

namespace distill::hf {

inline std::string config_json(bool tied) {
  return absl::StrCat(
      R"({"_name_or_path": "/somewhere", "model_type": "qwen2", "vocab_size": 29, "hidden_size": 16,
    "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "custom": null, "torch_dtype": "float32",
    "initializer_range": 0.05, "tie_word_embeddings": )",
      tied ? "true" : "false", "}");
}

// A folder src without weights of a small qwen2 model, and models that are saved from it.
class WeightsTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    make_source("src", /*tied=*/false);
  }

  void make_source(const std::string& name, bool tied) {
    write(name + "/config.json", config_json(tied));
    write(name + "/tokenizer.json", "{\"tokenizer\": 1}");
    write(name + "/generation_config.json", "{}");
    write(name + "/README.md", "not copied");
    const auto read = read_model_config(path(name));
    ASSERT_TRUE(read.ok()) << read.status();
    config_ = *read;
    layouts_ = models::unit_layouts(config_);
  }

  static at::Tensor load(
      const models::WeightSource& source, const models::UnitLayout& unit, at::ScalarType dtype = at::kFloat) {
    at::Tensor flat = at::full({unit.numel}, 7.0, dtype);
    source.copy_range(unit, 0, flat);
    return flat;
  }

  // Random weights, saved as a folder.
  absl::Status save(const std::string& name, SaveOptions options = {}) {
    const auto random = models::random_weights(config_, 11);
    options.config_folder = options.config_folder.empty() ? path("src") : options.config_folder;
    return save_model(
        path(name), config_, [&](size_t i) -> absl::StatusOr<at::Tensor> { return load(*random, layouts_[i]); },
        options);
  }

  static SaveOptions fp32() {
    SaveOptions options;
    options.dtype = at::kFloat;
    return options;
  }

  // Rewrites the single file of a saved folder with `edit` applied to its tensors.
  void edit_tensors(const std::string& name, const std::function<void(std::map<std::string, at::Tensor>&)>& edit) {
    auto contents = read_safetensors(path(name + "/model.safetensors"));
    ASSERT_TRUE(contents.ok()) << contents.status();
    edit(contents->tensors);
    ASSERT_TRUE(write_safetensors(path(name + "/model.safetensors"), contents->tensors).ok());
  }

  std::string open_error(const std::string& name, Notes* notes = nullptr) {
    const auto weights = open_weights(path(name), config_, notes);
    return weights.ok() ? "opened" : std::string(weights.status().message());
  }

  models::ModelConfig config_;
  std::vector<models::UnitLayout> layouts_;
};

} // namespace distill::hf
