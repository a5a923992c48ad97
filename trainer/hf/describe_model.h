#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::hf {

// What a Hugging Face folder holds, for people to read: architecture, shape table, parameters, stored dtypes, files and
// bytes, and notes. A folder whose tensors are not those of its config.json is an error that lists them; one without
// weights (a configuration alone) is described as such.
absl::StatusOr<std::string> describe_model(const std::string& folder);

} // namespace distill::hf
