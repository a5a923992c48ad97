#pragma once

#include <string>

// Advice about paths at which there is not what a key expects. Empty: none.
namespace distill::config {

// Tells how to download a model folder that is not there, if the path reads like an id of the Hugging Face Hub
// (ORG/NAME).
std::string download_hint(const std::string& key, const std::string& path);

// Gives the call that tokenises a file or folder with texts that stands in the place of token shards. `tokenizer`: of
// the model; empty: not known.
std::string tokenize_hint(const std::string& path, const std::string& tokenizer);

} // namespace distill::config
