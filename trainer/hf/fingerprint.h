#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::hf {

// A line with name, size and checksum for each file of a model folder that defines the model: config.json,
// *.safetensors and their index. For files larger than 1 MiB the checksum covers the start, which holds the header, the
// end, and blocks evenly spread in between, which suffices to tell two trainings apart. Errors name the file.
absl::StatusOr<std::string> folder_fingerprint(const std::string& folder);

} // namespace distill::hf
