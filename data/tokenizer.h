#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/base/sha256.h"

namespace distill::data {

// What a tokenizer.json (Hugging Face tokenizers) says about the meaning of ids and about how text becomes ids.
struct Tokenizer {
  std::string path; // the file
  std::string model; // BPE | Unigram | WordPiece | WordLevel
  std::vector<std::pair<int64_t, std::string>> tokens; // id and text, added tokens too; sorted, no duplicates
  std::vector<std::pair<std::string, std::string>> merges; // BPE, by rank
  std::vector<double> scores; // Unigram, by id
  // Canonical JSON text without members that only spell out a default.
  std::string model_options; // unk token, byte fallback, ... but not vocabulary and merges
  std::string normalizer;
  std::string pre_tokenizer;

  int64_t vocab_size() const { // largest id + 1
    return tokens.back().first + 1;
  }
  // SHA-256 over model, tokens, merges and scores in the form that docs/data.md gives; scripts/tokenize.py computes the
  // same and writes it into each shard.
  base::Digest hash() const;
};

// `path`: a model folder or a tokenizer.json. Errors name the file, the key, what was expected and what was found.
absl::StatusOr<Tokenizer> read_tokenizer(const std::string& path);

// InvalidArgument when the two do not turn every text into the same ids with the same meaning; the message gives the
// first differing tokens (id and both texts), merges or components. How wide the models pad their vocabularies plays no
// part: it is not in the tokenizer.
absl::Status compare_tokenizers(const Tokenizer& teacher, const Tokenizer& student);

} // namespace distill::data
