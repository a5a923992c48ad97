#pragma once

#include <absl/container/flat_hash_set.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

// What is known about the keys of Hugging Face's config.json beyond those that ModelConfig holds.
namespace distill::hf {

const absl::flat_hash_set<std::string>& supported_model_types();

// Keys that change nothing about logits and gradients: bookkeeping, generation, training-time switches of transformers.
const absl::flat_hash_set<std::string>& ignored_keys();

// Keys whose one value is what is computed here anyway.
const std::map<std::string, nlohmann::ordered_json>& neutral_values();

} // namespace distill::hf
