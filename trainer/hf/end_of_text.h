#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace distill::hf {

// The ids that end a generated text, as transformers' generate() reads them: `eos_token_id` of generation_config.json;
// where there is no such file, that of config.json, and in a multimodal folder without it that of text_config. An id, a
// list of ids, or nothing. InvalidArgument names the file and what was found.
absl::StatusOr<std::vector<int64_t>> end_of_text_ids(const std::string& folder);

} // namespace distill::hf
