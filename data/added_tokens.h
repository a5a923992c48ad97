#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace distill::data {

// The added tokens of a tokenizer.json together with those that the other files of its folder name
// (tokenizer_config.json, special_tokens_map.json, added_tokens.json), with the ids that they get in transformers 5: a
// token of the vocabulary keeps its id, and every other one gets the next free id, whatever id the files give. The same
// rule is in scripts/token_shards/config_tokens.py. `file`: the tokenizer.json; `json`: its content; `vocabulary`: id
// and text of the model's tokens. The result is sorted by id. InvalidArgument: a file is not as expected, which the
// message says with the key; two added tokens have one id.
absl::StatusOr<std::vector<AddedToken>> read_added_tokens(
    const std::string& file, const nlohmann::json& json,
    const std::vector<std::pair<int64_t, std::string>>& vocabulary);

} // namespace distill::data
