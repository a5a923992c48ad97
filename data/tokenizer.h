#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/base/sha256.h"

namespace distill::data {

// A token outside the model's vocabulary, from `added_tokens` or from another file of the folder (data/added_tokens.h).
struct AddedToken {
  int64_t id = 0;
  std::string text;
  bool special = false;
};

// The parts of a tokenizer.json (Hugging Face tokenizers) that decide what ids mean and how text becomes ids, with the
// added tokens of the other files of its folder.
struct Tokenizer {
  std::string path; // the file
  std::string model; // BPE | Unigram | WordPiece | WordLevel
  std::vector<std::pair<int64_t, std::string>> tokens; // id and text, added tokens included; sorted, without duplicates
  std::vector<std::pair<std::string, std::string>> merges; // BPE, by rank
  std::vector<double> scores; // Unigram, by id
  // Canonical JSON text, without members whose value is the default.
  std::string model_options; // unk token, byte fallback, ...; without vocabulary and merges
  std::string normalizer;
  std::string pre_tokenizer;
  // For turning ids back into text (data/token_text.h); part of neither the hash nor the comparison.
  std::vector<AddedToken> added;
  std::string decoder; // JSON text

  int64_t vocab_size() const { // largest id + 1
    return tokens.back().first + 1;
  }
  // SHA-256 over model, tokens, merges and scores in the form that docs/data.md describes; scripts/tokenize.py writes
  // the same hash into each shard.
  base::Digest hash() const;
};

// `path`: a model folder or a tokenizer.json. Errors name the file and the key, and say what was expected and what was
// found.
absl::StatusOr<Tokenizer> read_tokenizer(const std::string& path);

} // namespace distill::data
