#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::hf {

// One line for each file of a model folder that a model is read from (config.json, *.safetensors, their index): name,
// size, checksum. Of files over a MiB the checksum covers the start, which is the header, the end, and blocks evenly
// spread over the rest: models that were trained apart differ everywhere. Errors name the file.
absl::StatusOr<std::string> folder_fingerprint(const std::string& folder);

} // namespace distill::hf
