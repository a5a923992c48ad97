#include "trainer/setup/onpolicy_inputs.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/hf/end_of_text.h"

namespace distill::trainer {

namespace {

using Alignments = std::vector<std::shared_ptr<const data::TextAlignment>>;

// Opens the prompts of a key.
absl::StatusOr<std::unique_ptr<data::PromptPool>> open_prompts(
    const config::Config& config, const std::vector<config::DataSet>& sets, const char* key,
    const std::vector<base::Digest>& tokenizers, const Alignments& alignments) {
  const config::OnPolicySection& own = config.onpolicy;
  data::PromptPoolOptions options;
  for (const config::DataSet& set : sets) {
    options.sources.push_back({set.path, set.weight, set.teachers});
  }
  options.room = config.data.seq_len - own.max_new_tokens;
  options.teacher_room = config.data.teacher_length() - own.max_new_tokens;
  options.seed = own.seed;
  options.teachers = config.teacher_names();
  options.alignments = alignments;
  auto pool = data::PromptPool::open(options);
  if (!pool.ok()) {
    return absl::Status(
        pool.status().code(),
        absl::StrFormat(
            "%s (data.seq_len %d, onpolicy.max_new_tokens %d): %s", key, config.data.seq_len, own.max_new_tokens,
            pool.status().message()));
  }
  const data::ShardHeader& header = (*pool)->header();
  base::Digest hash;
  std::copy_n(header.tokenizer_hash, hash.size(), hash.begin());
  if (!tokenizers.empty() && std::find(tokenizers.begin(), tokenizers.end(), hash) == tokenizers.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        key, ": expected shards of the student's tokenizer, ", base::hex(tokenizers.front()), ", found ",
        base::hex(hash), "; tokenise the prompts again with the model's tokenizer"));
  }
  return pool;
}

} // namespace

absl::StatusOr<onpolicy::RoundInputs> open_onpolicy_inputs(
    const config::Config& config, const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits,
    const Alignments& alignments, bool pin_memory) {
  const config::OnPolicySection& own = config.onpolicy;
  ASSIGN_OR_RETURN(
      std::unique_ptr<data::PromptPool> pool,
      open_prompts(config, own.prompts, "onpolicy.prompts", tokenizers, alignments));
  const data::ShardHeader& header = pool->header();
  onpolicy::RoundInputs inputs;
  if (!own.eval_prompts.empty()) {
    ASSIGN_OR_RETURN(
        inputs.held_out, open_prompts(config, own.eval_prompts, "onpolicy.eval_prompts", tokenizers, alignments));
  }
  ASSIGN_OR_RETURN(inputs.end_ids, hf::end_of_text_ids(config.student.path));
  if (header.eos_id >= 0) {
    inputs.end_ids.push_back(header.eos_id);
  }
  std::sort(inputs.end_ids.begin(), inputs.end_ids.end());
  inputs.end_ids.erase(std::unique(inputs.end_ids.begin(), inputs.end_ids.end()), inputs.end_ids.end());
  // For the report alone, which shows ids where there is no text.
  auto text = data::TokenText::read(config.student.tokenizer.empty() ? config.student.path : config.student.tokenizer);
  if (text.ok()) {
    inputs.text = std::make_shared<const data::TokenText>(*std::move(text));
  }
  inputs.prompts = std::move(pool);
  inputs.limits = limits;
  // A completion is judged as a whole, or it is unusable: nothing is masked.
  data::TokenLimits::Stream& own_limits = inputs.limits.documents;
  std::vector<int64_t> all;
  std::set_union(
      own_limits.absent.begin(), own_limits.absent.end(), own_limits.masked.begin(), own_limits.masked.end(),
      std::back_inserter(all));
  own_limits.absent = std::move(all);
  own_limits.masked.clear();
  inputs.tokenizer_hashes = tokenizers;
  inputs.teachers = config.teacher_names();
  inputs.alignments = alignments;
  inputs.pin_memory = pin_memory;
  return inputs;
}

std::string describe_rounds(const config::Config& config, const onpolicy::RoundInputs& inputs) {
  const int64_t room = config.data.seq_len - config.onpolicy.max_new_tokens;
  return absl::StrFormat(
      "onpolicy: %d prompts of at most %d tokens (%d documents have none, or a longer one); a round is %d steps with %d "
      "completions, %d of the %d sequences of a step are on-policy",
      inputs.prompts->prompts(), room, inputs.prompts->without_room(), config.onpolicy.every,
      config.onpolicy_completions(), config.onpolicy_sequences(), config.train.global_batch_size);
}

} // namespace distill::trainer
