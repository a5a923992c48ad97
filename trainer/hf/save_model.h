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
  // config.json is copied from here, with its dtype set to `dtype`, and so are the other parts of a multimodal folder
  // (other_parts.h) with their names. Without their weights, the text model is saved alone.
  std::string config_folder;
  std::string tokenizer; // a folder or a tokenizer.json, see copy_tokenizer_files(); empty: config_folder
  at::ScalarType dtype = at::kBFloat16; // of the stored weights: float32, float16 or bfloat16
  int64_t max_shard_bytes = 5'000'000'000; // a larger model is written as shards of this size at most, with an index
  bool replace = false; // true: replace an existing folder once the new one is complete; false: an error
  // An existing folder of the same tensors is overwritten, so that no new memory or blocks are taken for its files. It
  // is whole again when its checksums.xxh3 is back. For a folder that nobody reads meanwhile; implies `replace`.
  bool in_place = false;
};

// Returns the flat buffer of a unit: at least layout.numel elements of any floating dtype on any device. Called once
// for each unit, in order; the buffer is used, on the current stream of its device, until the next call.
using UnitFlat = std::function<absl::StatusOr<at::Tensor>(size_t unit)>;

// Writes a Hugging Face folder that transformers and vLLM can load, with checksums.xxh3 for `distill verify`. Units are
// asked for one after the other, and their values pass through a few buffers in host memory (StagedWriter). The files
// are written to a folder beside the target (base::kUnfinishedFolder), which is synced and renamed at the end, and
// removed after an error; but in_place.
absl::Status save_model(
    const std::string& target, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options);

// Makes a folder: `write` writes and syncs its files in another one, which is then renamed, and removed after an error.
// AlreadyExists: there is one that is not empty, and `replace` is false.
absl::Status write_model_folder(
    const std::string& target, bool replace, const std::function<absl::Status(const std::string& folder)>& write);

// The names of the tokenizer, chat template and generation files in a Hugging Face folder, relative to it. Chat
// templates that have a name of their own are in additional_chat_templates/.
std::vector<std::string> tokenizer_files(const std::string& folder);

// Copies tokenizer_files() into a folder and syncs them. `from`: their folder, or the tokenizer.json in it, which may
// have another name there.
absl::Status copy_tokenizer_files(const std::string& from, const std::string& to);

} // namespace distill::hf
