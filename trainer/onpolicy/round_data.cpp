#include "trainer/onpolicy/round_data.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "data/random.h"
#include "data/shard_writer.h"
#include "trainer/onpolicy/round_shards.h"

namespace distill::onpolicy {
namespace {

constexpr uint64_t kSeedMask = (uint64_t{1} << 53) - 1;
constexpr uint64_t kHeldOutRound = ~uint64_t{0}; // in the place of a round's number

// What the data sets of a round have in common. A round is small, and a damaged one must not be learned. Several shards
// are weighted by their tokens, as the documents of several teachers in one are.
absl::StatusOr<data::DataOptions> round_options(
    const config::Config& config, const RoundInputs& inputs, const std::string& folder) {
  data::DataOptions options;
  ASSIGN_OR_RETURN(const std::vector<data::Shard> shards, open_round_shards(folder));
  for (const data::Shard& shard : shards) {
    options.sources.push_back({shard.path(), shards.size() == 1 ? 1.0 : static_cast<double>(shard.tokens())});
  }
  options.seq_len = config.data.seq_len;
  options.teacher_seq_len = config.data.teacher_seq_len;
  options.tokenizer_hashes = inputs.tokenizer_hashes;
  options.limits = inputs.limits;
  options.pin_memory = inputs.pin_memory;
  options.teachers = config.teacher_names();
  options.alignments = inputs.alignments;
  options.teacher_group = std::max<int64_t>(1, config.data.teacher_sequences);
  options.verify = true;
  return options;
}

absl::StatusOr<std::shared_ptr<data::Dataset>> open_set(const data::DataOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<data::Dataset> set, data::Dataset::open(options));
  return std::shared_ptr<data::Dataset>(std::move(set));
}

// A prompt and its completion, in the tokens of one of the models.
struct Text {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> in_completion;

  Text() = default;
  Text(const std::vector<uint32_t>& prompt, const std::vector<uint32_t>& completion)
      : tokens(prompt), in_completion(prompt.size(), 0) {
    tokens.insert(tokens.end(), completion.begin(), completion.end());
    in_completion.resize(tokens.size(), 1);
  }
};

} // namespace

const data::TextAlignment* RoundInputs::alignment_of(const std::string& teacher) const {
  const auto number = static_cast<size_t>(std::find(teachers.begin(), teachers.end(), teacher) - teachers.begin());
  const size_t place = teacher.empty() ? 0 : number;
  return place < alignments.size() ? alignments[place].get() : nullptr;
}

absl::StatusOr<std::vector<Request>> round_requests(
    const config::OnPolicySection& config, const data::PromptPool& prompts, int64_t round, int64_t first_prompt,
    int64_t completions) {
  const uint64_t key = data::derive_key(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(round));
  std::vector<Request> requests;
  requests.reserve(static_cast<size_t>(completions));
  for (int64_t id = 0; id < completions; ++id) {
    Request request;
    request.id = id;
    ASSIGN_OR_RETURN(request.prompt, prompts.prompt(first_prompt + id / config.samples));
    request.seed = data::derive_key(key, static_cast<uint64_t>(id)) & kSeedMask;
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::Status add_held_out_requests(
    const config::OnPolicySection& config, const data::PromptPool& held_out, int64_t count,
    std::vector<Request>& requests) {
  const uint64_t key = data::derive_key(static_cast<uint64_t>(config.seed), kHeldOutRound);
  for (int64_t i = 0; i < count; ++i) {
    Request request;
    request.id = static_cast<int64_t>(requests.size());
    ASSIGN_OR_RETURN(request.prompt, held_out.prompt(i));
    request.seed = data::derive_key(key, static_cast<uint64_t>(i)) & kSeedMask;
    request.temperature = config.eval_temperature;
    requests.push_back(std::move(request));
  }
  return absl::OkStatus();
}

std::vector<std::vector<int64_t>> documents_of_shards(
    const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, const RoundInputs& inputs) {
  std::vector<const data::TextAlignment*> tokenizers = {nullptr}; // one alignment of each
  std::vector<std::vector<int64_t>> shards(1);
  for (const auto& alignment : inputs.alignments) {
    const bool known = std::any_of(tokenizers.begin(), tokenizers.end(), [&](const data::TextAlignment* other) {
      return alignment == nullptr || (other != nullptr && other->teacher_hash() == alignment->teacher_hash());
    });
    if (!known) {
      tokenizers.push_back(alignment.get());
      shards.emplace_back();
    }
  }
  for (const auto& [id, completion] : completions) {
    const data::TextAlignment* own = inputs.alignment_of(requests[static_cast<size_t>(id)].prompt.teacher);
    size_t shard = 0;
    while (own != nullptr &&
           (tokenizers[shard] == nullptr || tokenizers[shard]->teacher_hash() != own->teacher_hash())) {
      ++shard;
    }
    shards[shard].push_back(id);
  }
  std::erase_if(shards, [](const std::vector<int64_t>& ids) { return ids.empty(); });
  return shards;
}

absl::Status write_round_shards(
    const std::string& folder, const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions,
    const RoundInputs& inputs, const data::ShardHeader& prompts) {
  data::ShardSpec spec;
  spec.vocab_size = prompts.vocab_size;
  std::copy_n(prompts.tokenizer_hash, spec.tokenizer_hash.size(), spec.tokenizer_hash.begin());
  spec.bos_id = prompts.bos_id;
  spec.eos_id = prompts.eos_id;
  spec.loss_mask = true;
  int64_t number = 0;
  for (const std::vector<int64_t>& ids : documents_of_shards(requests, completions, inputs)) {
    const data::TextAlignment* alignment =
        inputs.alignment_of(requests[static_cast<size_t>(ids.front())].prompt.teacher);
    spec.teacher_vocab_size = alignment != nullptr ? static_cast<uint64_t>(alignment->teacher_vocab_size()) : 0;
    spec.teacher_tokenizer_hash = alignment != nullptr ? alignment->teacher_hash() : base::Digest{};
    data::ShardWriter writer(spec);
    for (const int64_t id : ids) {
      const data::PooledPrompt& prompt = requests[static_cast<size_t>(id)].prompt;
      const Completion& completion = completions.at(id);
      const Text own(prompt.ids, completion.ids);
      Text teacher;
      if (!prompt.teacher_ids.empty()) {
        teacher = Text(prompt.teacher_ids, alignment != nullptr ? completion.teacher_ids : completion.ids);
      }
      RETURN_IF_ERROR(
          writer.add(own.tokens, own.in_completion, {teacher.tokens, teacher.in_completion}, prompt.teacher));
    }
    RETURN_IF_ERROR(writer.write(round_shard_path(folder, number++)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<data::Dataset>> open_round_data(
    const config::Config& config, const RoundInputs& inputs, const std::string& folder, int64_t round,
    int64_t sequences) {
  ASSIGN_OR_RETURN(data::DataOptions options, round_options(config, inputs, folder));
  options.seed = static_cast<int64_t>(
      data::derive_key(static_cast<uint64_t>(config.onpolicy.seed), static_cast<uint64_t>(round)) & kSeedMask);
  options.least_sequences = sequences;
  return open_set(options);
}

absl::StatusOr<std::shared_ptr<data::Dataset>> open_held_out_data(
    const config::Config& config, const RoundInputs& inputs, const std::string& folder) {
  ASSIGN_OR_RETURN(data::DataOptions options, round_options(config, inputs, folder));
  options.once = true;
  options.shuffle = false;
  return open_set(options);
}

} // namespace distill::onpolicy
