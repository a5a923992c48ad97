#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>
#include <vector>

namespace distill::data {

// The first part of a held-out document, and what follows it there.
struct Prompt {
  int64_t document = 0; // among the documents of all data sets, from 0
  std::vector<int64_t> ids; // at least one
  std::vector<int64_t> target; // up to PromptOptions::new_tokens, at least one
};

struct PromptOptions {
  int64_t count = 0;
  int64_t seq_len = 0; // of prompt and continuation together, tokens
  int64_t new_tokens = 0; // room for the continuation; below seq_len
};

struct PromptSet {
  std::vector<Prompt> prompts; // fewer than asked for, where there are no more
  std::vector<int64_t> eos_ids; // of the shards' headers, ascending
};

// The first `count` documents of the data sets (shards, or folders of them) that have a prompt, always the same ones.
// A conversation's prompt ends before the first token in the loss, and its target is that answer; a conversation whose
// prompt leaves no room is passed over. The prompt of a text, which is in the loss from its first token on, is its
// first half, or as much of it as leaves room.
absl::StatusOr<PromptSet> held_out_prompts(absl::Span<const std::string> paths, const PromptOptions& options);

} // namespace distill::data
