#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"

namespace distill::hf {

struct SaveOptions {
  std::string config_folder; // its config.json is copied, with dtype brought up to date
  std::string tokenizer_folder; // its tokenizer and generation files are copied; empty: those of config_folder
  at::ScalarType dtype = at::kBFloat16; // of the stored weights: float32, float16 or bfloat16
  int64_t max_shard_bytes = 5'000'000'000; // one model.safetensors up to here, an index of shards beyond
  bool replace = false; // an existing target is replaced once the new folder is complete; else it is an error
};

// The flat buffer of unit i (at least layout.numel elements, any floating dtype and device). Called once for each unit,
// in order; it is used until the next call.
using UnitFlat = std::function<absl::StatusOr<at::Tensor>(size_t unit)>;

// Writes a Hugging Face folder, with checksums.xxh3 for `distill verify`, that transformers and vLLM load. Units are
// streamed: host memory stays at one unit. Everything is written to "<target>.tmp", synced, and renamed at the end; on
// failure nothing is left behind.
absl::Status save_model(
    const std::string& target, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options);

// Tokenizer, chat template and generation files that stand in a Hugging Face folder; names only.
std::vector<std::string> tokenizer_files(const std::string& folder);

} // namespace distill::hf
