#include "data/prompts.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "data/shard.h"

namespace distill::data {
namespace {

// Finds the ends of the prompt and of its target in the document. An empty target means that the document has no
// prompt.
struct Cut {
  int64_t prompt = 0;
  int64_t end = 0;
};

Cut cut_document(const Shard& shard, int64_t document, const PromptOptions& options) {
  const int64_t begin = shard.document_begin(document);
  const int64_t length = shard.document_length(document);
  const int64_t room = options.seq_len - options.new_tokens;
  const auto in_loss = [&](int64_t token) { return shard.in_loss(begin + token); };
  int64_t answer = 0;
  while (answer < length && !in_loss(answer)) {
    ++answer;
  }
  if (answer == 0 && length >= 2) { // a text
    const int64_t prompt = std::min(length / 2, room);
    return {prompt, std::min(length, prompt + options.new_tokens)};
  }
  if (answer == 0 || answer == length || answer > room) {
    return {};
  }
  int64_t end = answer;
  while (end < std::min(length, answer + options.new_tokens) && in_loss(end)) {
    ++end;
  }
  return {answer, end};
}

} // namespace

absl::StatusOr<PromptSet> held_out_prompts(absl::Span<const std::string> paths, const PromptOptions& options) {
  PromptSet out;
  int64_t number = 0;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const std::vector<Shard> shards, open_shards(path));
    for (const Shard& shard : shards) {
      if (shard.header().eos_id >= 0) {
        out.eos_ids.push_back(shard.header().eos_id);
      }
      for (int64_t document = 0; document < shard.documents(); ++document, ++number) {
        if (static_cast<int64_t>(out.prompts.size()) == options.count) {
          break;
        }
        const Cut cut = cut_document(shard, document, options);
        if (cut.end <= cut.prompt) {
          continue;
        }
        std::vector<int64_t> ids(static_cast<size_t>(cut.end));
        RETURN_IF_ERROR(shard.read_tokens(shard.document_begin(document), absl::MakeSpan(ids)));
        const auto middle = ids.begin() + cut.prompt;
        out.prompts.push_back({number, {ids.begin(), middle}, {middle, ids.end()}});
      }
    }
  }
  std::sort(out.eos_ids.begin(), out.eos_ids.end());
  out.eos_ids.erase(std::unique(out.eos_ids.begin(), out.eos_ids.end()), out.eos_ids.end());
  return out;
}

} // namespace distill::data
