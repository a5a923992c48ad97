#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/mixer.h"
#include "data/shard.h"
#include "data/text_alignment.h"

namespace distill::data {

struct PromptPoolOptions {
  std::vector<DataSource> sources; // token shards, or folders of them
  int64_t room = 0; // longest prompt, tokens
  int64_t teacher_room = 0; // the same for texts of the teacher's own
  bool teacher_stream = true; // false: texts of the teacher's own are not read
  int64_t seed = 0; // of the order
  std::vector<std::string> teachers; // as DataOptions::teachers
  std::vector<std::shared_ptr<const TextAlignment>> alignments; // as DataOptions::alignments
};

// What a model is to continue.
struct PooledPrompt {
  std::vector<uint32_t> ids; // at least one
  std::vector<uint32_t> teacher_ids; // what the teacher reads in their place; empty: the same
  std::string teacher; // of several, the name of its teacher
};

// An endless, deterministic series of prompts from token shards. Every epoch of a data set has each of its prompts
// once, in another order, and the data sets are mixed in proportion to their weights. Prompt n depends on n, the
// options and the files alone. The prompt of a conversation is all that comes before its first token in the loss; a
// text, which is in the loss from its first token on, has its first half as prompt, or as much of it as there is room
// for; a document without any token in the loss is a prompt as a whole. Prompts without room are passed over. Where the
// teacher has a tokenizer of its own, every document has a text in its tokens, and that of a text is cut at the same
// byte: at the last place in the first half at which both have a token boundary.
class PromptPool {
 public:
  // InvalidArgument: a data set that cannot be read, has another tokenizer than the first one, has no prompt, or has
  // documents without a text in their teacher's tokens.
  static absl::StatusOr<std::unique_ptr<PromptPool>> open(const PromptPoolOptions& options);

  // Thread-safe. DataLoss: a token id that is not below the shard's vocab_size.
  absl::StatusOr<PooledPrompt> prompt(int64_t number) const;

  int64_t prompts() const { // of an epoch of every data set
    return prompts_;
  }
  int64_t without_room() const { // documents that are passed over
    return without_room_;
  }
  // The header of the first shard, with the largest vocab_size of all.
  const ShardHeader& header() const {
    return header_;
  }
  // Equal fingerprints mean the same series of prompts.
  base::Digest fingerprint() const;

 private:
  struct Source {
    std::vector<Shard> shards;
    std::vector<uint8_t> teachers; // with several, the number of that of each document, counted over all shards
    std::vector<int64_t> first_document; // of each shard
    std::vector<uint64_t>
        usable; // documents with a prompt: the shard's index in the high half, the document in the low
  };
  // Tokens of a document's prompt, and of the teacher's. `tokens` 0: there is none, or no room for it.
  struct Cut {
    int64_t tokens = 0;
    int64_t teacher_tokens = 0;
  };
  absl::StatusOr<Cut> cut(const Shard& shard, int64_t document, const TextAlignment* alignment) const;
  absl::StatusOr<Cut> cut_both(const Shard& shard, int64_t document, const TextAlignment& alignment) const;
  // Of a document, counted over all shards of the source.
  size_t teacher_of(const Source& source, int64_t document) const {
    return source.teachers.empty() ? 0 : source.teachers[static_cast<size_t>(document)];
  }
  const TextAlignment* alignment_of(const Source& source, int64_t document) const {
    return options_.teacher_stream && !options_.alignments.empty()
        ? options_.alignments[teacher_of(source, document)].get()
        : nullptr;
  }

  PromptPoolOptions options_;
  std::vector<Source> sources_;
  std::unique_ptr<Mixer> mixer_;
  ShardHeader header_{};
  int64_t prompts_ = 0;
  int64_t without_room_ = 0;
};

} // namespace distill::data
