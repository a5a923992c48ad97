#pragma once

#include <string>

// Advice about paths at which there is not what a key expects. Empty: none.
namespace distill::config {

// For a model folder that is not there: how to download it, where the path reads like an id of the Hugging Face Hub
// (ORG/NAME).
std::string download_hint(const std::string& key, const std::string& path);

// For a file or folder with texts in the place of token shards: the call that tokenises it. `tokenizer`: of the model;
// empty: not known.
std::string tokenize_hint(const std::string& path, const std::string& tokenizer);

} // namespace distill::config
