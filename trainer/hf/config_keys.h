#pragma once

#include <absl/container/flat_hash_set.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/hf/key_reader.h"

// The keys of Hugging Face's config.json that ModelConfig does not hold.
namespace distill::hf {

// Keys that do not affect logits and gradients: bookkeeping, generation, training switches of transformers.
const absl::flat_hash_set<std::string>& ignored_keys();

// Keys that are accepted with one value only, which describes the computation that is done here.
const std::map<std::string, nlohmann::ordered_json>& neutral_values();

// Complains of every key that was not taken, unless it does not affect the result, or has the one value that is
// computed. `ignored`: unknown keys that, by the user's word, do not change the mathematics.
void refuse_other_keys(KeyReader& keys, const absl::flat_hash_set<std::string>& ignored);

} // namespace distill::hf
