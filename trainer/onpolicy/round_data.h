#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/prompt_pool.h"
#include "data/text_alignment.h"
#include "data/token_text.h"
#include "trainer/config/config.h"
#include "trainer/onpolicy/exchange.h"

namespace distill::onpolicy {

// What the rounds of a run are made from, besides the student.
struct RoundInputs {
  std::shared_ptr<const data::PromptPool> prompts;
  std::shared_ptr<const data::PromptPool> held_out; // onpolicy.eval_prompts; null: there are none
  data::TokenLimits limits; // which tokens the models can read
  std::vector<base::Digest> tokenizer_hashes; // as DataOptions::tokenizer_hashes
  std::vector<int64_t> end_ids; // tokens that end a text, ascending
  std::shared_ptr<const data::TokenText> text; // of the student's tokenizer; null: it has none that can be read
  std::vector<std::string> teachers; // as DataOptions::teachers
  // As DataOptions::alignments.
  std::vector<std::shared_ptr<const data::TextAlignment>> alignments;
  bool pin_memory = false;

  // Of a prompt's teacher (PooledPrompt::teacher); null: it reads the student's tokens.
  const data::TextAlignment* alignment_of(const std::string& teacher) const;
};

// The requests of a round, by id: `completions` of them, onpolicy.samples for each prompt from number `first_prompt`
// on.
absl::StatusOr<std::vector<Request>> round_requests(
    const config::OnPolicySection& config, const data::PromptPool& prompts, int64_t round, int64_t first_prompt,
    int64_t completions);

// Adds the requests for the first `count` held-out prompts. Prompts and seeds are the same in all rounds.
absl::Status add_held_out_requests(
    const config::OnPolicySection& config, const data::PromptPool& held_out, int64_t count,
    std::vector<Request>& requests);

// The completions in the order of a round's documents: a list for each shard (round_shards.h), by id. Teachers that
// read the student's tokens come first, then those of each other tokenizer.
std::vector<std::vector<int64_t>> documents_of_shards(
    const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, const RoundInputs& inputs);

// Writes prompts and completions as token shards in a folder: a document for each completion, with the completion in
// the loss. After a truncated completion there is no further token, so that nothing is learned about where the text
// ends. `prompts`: the header of their shards.
absl::Status write_round_shards(
    const std::string& folder, const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions,
    const RoundInputs& inputs, const data::ShardHeader& prompts);

// The data set of a round's shards: at least `sequences` sequences, over which the completions are spread.
absl::StatusOr<std::shared_ptr<data::Dataset>> open_round_data(
    const config::Config& config, const RoundInputs& inputs, const std::string& folder, int64_t round,
    int64_t sequences);

// The data set of a round's held-out completions, which is read once.
absl::StatusOr<std::shared_ptr<data::Dataset>> open_held_out_data(
    const config::Config& config, const RoundInputs& inputs, const std::string& folder);

} // namespace distill::onpolicy
