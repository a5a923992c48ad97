#pragma once

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "tests/data/fixtures.h"

namespace distill::data::testing {

// A small BPE tokenizer with one added token, as the JSON of its file, and tokenizers that are read from such files.
class TokenizerFolderTest : public FolderTest {
 protected:
  static nlohmann::json bpe() {
    return nlohmann::json::parse(R"({
      "version": "1.0",
      "added_tokens": [{"id": 5, "content": "<|end|>", "special": true}],
      "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "model": {"type": "BPE", "unk_token": null, "byte_fallback": false,
                "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], ["ab", "c"]]}})");
  }
  // A byte-level tokenizer with these tokens, of which those that begin with < are special.
  static nlohmann::json byte_level(const std::vector<std::string>& tokens) {
    nlohmann::json json = bpe();
    json["model"]["vocab"] = nlohmann::json::object();
    json["model"]["merges"] = nlohmann::json::array();
    json["added_tokens"] = nlohmann::json::array();
    json["decoder"] = nlohmann::json{{"type", "ByteLevel"}};
    for (size_t id = 0; id < tokens.size(); ++id) {
      json["model"]["vocab"][tokens[id]] = id;
      if (tokens[id][0] == '<') {
        json["added_tokens"].push_back({{"id", id}, {"content", tokens[id]}, {"special", true}});
      }
    }
    return json;
  }
  Tokenizer read(const nlohmann::json& json, const std::string& name = "tokenizer.json") {
    const auto tokenizer = read_tokenizer(write(name, json.dump()));
    TORCH_CHECK(tokenizer.ok(), tokenizer.status().ToString());
    return *tokenizer;
  }
};

} // namespace distill::data::testing
