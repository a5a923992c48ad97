#include "data/prompt_pool.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/random.h"
#include "data/teacher_text.h"

namespace distill::data {

// Of a text, which is in the loss from its first token on, or from the one after its begin-of-text token.
absl::StatusOr<PromptPool::Cut> PromptPool::cut_both(
    const Shard& shard, int64_t document, const TextAlignment& alignment) const {
  AlignedCompletion text;
  RETURN_IF_ERROR(align_completion(shard, document, whole_texts(shard, document), alignment, text));
  const int64_t room = std::min(shard.document_length(document) / 2, options_.room);
  Cut cut;
  for (const TextAlignment::Piece& piece : text.split.pieces) {
    const Cut next{text.positions[piece.end - 1] + 1, text.teacher_positions[piece.teacher_end - 1] + 1};
    if (next.tokens > room || next.teacher_tokens > options_.teacher_room) {
      break;
    }
    cut = next;
  }
  return cut;
}

absl::StatusOr<PromptPool::Cut> PromptPool::cut(
    const Shard& shard, int64_t document, const TextAlignment* alignment) const {
  const int64_t begin = shard.document_begin(document), length = shard.document_length(document);
  int64_t answer = 0;
  while (answer < length && !shard.in_loss(begin + answer)) {
    ++answer;
  }
  if (options_.teacher_stream) {
    RETURN_IF_ERROR(check_teacher_tokens(shard, document, alignment));
  }
  if (alignment != nullptr && answer < length && answer <= 1) {
    int64_t first = 0;
    RETURN_IF_ERROR(shard.read_tokens(begin, absl::MakeSpan(&first, 1)));
    if (answer == 0 || first == shard.header().bos_id) {
      return cut_both(shard, document, *alignment);
    }
  }
  Cut cut;
  cut.tokens = answer > 0 ? answer : std::min(length / 2, options_.room);
  if (options_.teacher_stream && shard.teacher_length(document) > 0) {
    const int64_t teacher_begin = shard.teacher_begin(document), teacher_length = shard.teacher_length(document);
    while (cut.teacher_tokens < teacher_length && !shard.in_teacher_completion(teacher_begin + cut.teacher_tokens)) {
      ++cut.teacher_tokens;
    }
  }
  const bool has_both = alignment == nullptr || cut.teacher_tokens > 0;
  return has_both && cut.tokens <= options_.room && cut.teacher_tokens <= options_.teacher_room ? cut : Cut{};
}

absl::StatusOr<std::unique_ptr<PromptPool>> PromptPool::open(const PromptPoolOptions& options) {
  base::ProblemList problems;
  auto pool = std::make_unique<PromptPool>();
  pool->options_ = options;
  std::vector<double> weights;
  for (const DataSource& spec : options.sources) {
    std::optional<std::vector<Shard>> shards = problems.take(open_shards(spec.path));
    if (!shards) {
      continue;
    }
    Source source;
    source.shards = *std::move(shards);
    const base::Digest hash = source.shards[0].tokenizer_hash();
    if (!pool->sources_.empty() && hash != pool->sources_[0].shards[0].tokenizer_hash()) {
      problems.add(absl::StrCat(
          spec.path, ": expected shards of the same tokenizer as ", pool->sources_[0].shards[0].path(), ", ",
          base::hex(pool->sources_[0].shards[0].tokenizer_hash()), ", found ", base::hex(hash)));
    }
    if (options.teachers.size() > 1) {
      const auto divided = problems.take(divide_documents(source.shards, spec.teachers, options.teachers));
      for (size_t teacher = 0; divided && teacher < divided->size(); ++teacher) {
        for (const uint32_t document : (*divided)[teacher]) {
          source.teachers.resize(std::max<size_t>(source.teachers.size(), document + 1));
          source.teachers[document] = static_cast<uint8_t>(teacher);
        }
      }
    }
    int64_t documents = 0;
    bool readable = true;
    for (size_t i = 0; i < source.shards.size(); ++i) {
      const Shard& shard = source.shards[i];
      source.first_document.push_back(documents);
      documents += shard.documents();
      for (int64_t document = 0; document < shard.documents(); ++document) {
        const int64_t number = source.first_document.back() + document;
        const auto cut = problems.take(pool->cut(shard, document, pool->alignment_of(source, number)));
        if (!cut) {
          readable = false;
          break;
        }
        if (cut->tokens > 0) {
          source.usable.push_back(static_cast<uint64_t>(i) << 32 | static_cast<uint64_t>(document));
        }
      }
      pool->header_.vocab_size = std::max(pool->header_.vocab_size, shard.header().vocab_size);
    }
    const auto usable = static_cast<int64_t>(source.usable.size());
    if (usable == 0 && readable) {
      problems.add(absl::StrCat(
          spec.path, ": expected documents with a prompt of at most ", options.room, " tokens",
          options.teacher_stream ? absl::StrCat(" (of the teacher's own text: ", options.teacher_room, ")") : "",
          ", found none among ", documents));
    }
    pool->prompts_ += usable;
    pool->without_room_ += documents - usable;
    pool->sources_.push_back(std::move(source));
    weights.push_back(spec.weight);
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  const uint64_t vocab_size = pool->header_.vocab_size;
  pool->header_ = pool->sources_[0].shards[0].header();
  pool->header_.vocab_size = vocab_size;
  pool->mixer_ = std::make_unique<Mixer>(weights);
  return pool;
}

absl::StatusOr<PooledPrompt> PromptPool::prompt(int64_t number) const {
  const Mixer::Place place = mixer_->locate(number);
  const Source& source = sources_[static_cast<size_t>(place.source)];
  const auto size = static_cast<int64_t>(source.usable.size());
  const uint64_t key = derive_key(static_cast<uint64_t>(options_.seed), static_cast<uint64_t>(place.source));
  const Permutation order(size, derive_key(key, static_cast<uint64_t>(place.sample / size) + 1));
  const uint64_t found = source.usable[order(static_cast<uint64_t>(place.sample % size))];
  const Shard& shard = source.shards[found >> 32];
  const auto document = static_cast<int64_t>(found & UINT32_MAX);
  const int64_t in_source = source.first_document[found >> 32] + document;
  ASSIGN_OR_RETURN(const Cut lengths, cut(shard, document, alignment_of(source, in_source)));
  PooledPrompt prompt;
  if (!source.teachers.empty()) {
    prompt.teacher = options_.teachers[teacher_of(source, in_source)];
  }
  std::vector<int64_t> ids(static_cast<size_t>(lengths.tokens));
  RETURN_IF_ERROR(shard.read_tokens(shard.document_begin(document), absl::MakeSpan(ids)));
  prompt.ids.assign(ids.begin(), ids.end());
  ids.resize(static_cast<size_t>(lengths.teacher_tokens));
  if (!ids.empty()) {
    RETURN_IF_ERROR(shard.read_teacher_tokens(shard.teacher_begin(document), absl::MakeSpan(ids)));
    prompt.teacher_ids.assign(ids.begin(), ids.end());
  }
  return prompt;
}

base::Digest PromptPool::fingerprint() const {
  base::Sha256 hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(options_.seed);
  add(options_.room);
  add(options_.teacher_stream ? options_.teacher_room : int64_t{0});
  for (const auto& alignment : options_.alignments) {
    if (alignment == nullptr) {
      continue;
    }
    const base::Digest teacher = alignment->teacher_hash();
    hash.update(teacher.data(), teacher.size());
    for (const auto& [own, its] : alignment->token_pairs()) {
      hash.update(own.data(), own.size() + 1);
      hash.update(its.data(), its.size() + 1);
    }
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    add(options_.sources[i].weight);
    for (const auto& [name, share] : options_.sources[i].teachers) {
      hash.update(name.data(), name.size() + 1);
      add(share);
    }
    for (const Shard& shard : sources_[i].shards) {
      hash.update(shard.header().header_hash, sizeof(ShardHeader::header_hash));
    }
  }
  return hash.finish();
}

} // namespace distill::data
