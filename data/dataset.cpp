#include "data/dataset.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/random.h"

namespace distill::data {

namespace {

void check_options(const DataOptions& options, base::ProblemList& problems) {
  if (options.sources.empty()) {
    problems.add("data: expected at least one token shard or folder of shards, found none");
  }
  if (options.sources.size() >= static_cast<size_t>(Mixer::kPeriod)) {
    problems.add(
        absl::StrCat("data: expected fewer than ", Mixer::kPeriod, " sources, found ", options.sources.size()));
  }
  for (const DataSource& source : options.sources) {
    if (!std::isfinite(source.weight) || source.weight <= 0) {
      problems.add(absl::StrCat(source.path, ": weight: expected a positive finite number, found ", source.weight));
    }
  }
  if (options.seq_len < 2 || options.seq_len > INT32_MAX) {
    problems.add(absl::StrCat("seq_len: expected 2 to 2^31 - 1, found ", options.seq_len));
  }
  if (options.teacher_seq_len != 0 && (options.teacher_seq_len < 2 || options.teacher_seq_len > INT32_MAX)) {
    problems.add(absl::StrCat("teacher_seq_len: expected 0 or 2 to 2^31 - 1, found ", options.teacher_seq_len));
  }
  if (options.pin_memory && !at::hasCUDA()) {
    problems.add("pin_memory: expected a CUDA device, found none");
  }
}

void check_shard(const Shard& shard, const DataOptions& options, base::ProblemList& problems) {
  if (shard.has_teacher_stream() && options.teacher_stream && options.packing == PackingMode::kConcat) {
    problems.add(absl::StrCat(
        shard.path(),
        ": has texts of the teacher's own: expected packing: pack, found concat (the texts of student and "
        "teacher have other lengths, so that one stream cannot be cut at the same places of both)"));
  }
  const std::vector<base::Digest>& hashes = options.tokenizer_hashes;
  if (!hashes.empty() && std::find(hashes.begin(), hashes.end(), shard.tokenizer_hash()) == hashes.end()) {
    const auto append = [](std::string* out, const base::Digest& hash) { out->append(base::hex(hash)); };
    problems.add(absl::StrCat(
        shard.path(), ": header field `tokenizer_hash`: expected ", absl::StrJoin(hashes, " or ", append),
        hashes.size() > 1 ? " (the tokenizers of student and teacher), found " : " (the model's tokenizer), found ",
        base::hex(shard.tokenizer_hash()), "; tokenise the text again with the model's tokenizer"));
  } else {
    problems.add(check_token_limits(shard, options.limits));
  }
  if (options.verify) {
    problems.add(shard.verify());
  }
  shard.advise(options.shuffle ? base::Access::kRandom : base::Access::kSequential);
}

} // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::open(const DataOptions& options) {
  base::ProblemList problems;
  check_options(options, problems);
  std::unique_ptr<Dataset> dataset(new Dataset());
  dataset->options_ = options;
  std::vector<double> weights;
  for (const DataSource& spec : options.sources) {
    std::optional<std::vector<Shard>> shards = problems.take(open_shards(spec.path));
    if (!shards) {
      continue;
    }
    for (const Shard& shard : *shards) {
      check_shard(shard, options, problems);
    }
    const Source* first = dataset->sources_.empty() ? nullptr : &dataset->sources_[0];
    if (options.tokenizer_hashes.empty() && first != nullptr &&
        first->shards[0].tokenizer_hash() != (*shards)[0].tokenizer_hash()) {
      problems.add(absl::StrCat(
          (*shards)[0].path(), ": header field `tokenizer_hash`: expected ",
          base::hex(first->shards[0].tokenizer_hash()), " as in ", first->shards[0].path(), ", found ",
          base::hex((*shards)[0].tokenizer_hash())));
    }
    Source source;
    source.shards = *std::move(shards);
    dataset->sources_.push_back(std::move(source));
    weights.push_back(spec.weight);
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  const bool teacher_stream = options.teacher_stream &&
      std::any_of(dataset->sources_.begin(), dataset->sources_.end(), [](const Source& source) {
                                return std::any_of(source.shards.begin(), source.shards.end(), [](const Shard& shard) {
                                  return shard.has_teacher_stream();
                                });
                              });
  if (teacher_stream) {
    dataset->teacher_len_ = options.teacher_seq_len > 0 ? options.teacher_seq_len : options.seq_len;
  }
  for (size_t i = 0; i < dataset->sources_.size(); ++i) {
    SourceStats stats;
    stats.path = options.sources[i].path;
    dataset->plan(dataset->sources_[i], stats, static_cast<int64_t>(i));
    if (stats.samples == 0) {
      problems.add(absl::StrCat(
          stats.path, ": no document has a token of its completion within seq_len (", options.seq_len,
          ") of its own text and within teacher_seq_len (", dataset->teacher_len_, ") of the teacher's"));
    }
    dataset->num_samples_ += stats.samples;
    dataset->stats_.push_back(std::move(stats));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  if (!options.once) {
    dataset->mixer_.emplace(weights);
  }
  return dataset;
}

std::vector<int64_t> Dataset::document_lengths(const Source& source) {
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(source.first_document.back()));
  for (const Shard& shard : source.shards) {
    for (int64_t document = 0; document < shard.documents(); ++document) {
      lengths.push_back(shard.document_length(document));
    }
  }
  return lengths;
}

void Dataset::plan(Source& source, SourceStats& stats, int64_t index) {
  source.first_document = {0};
  for (const Shard& shard : source.shards) {
    source.first_document.push_back(source.first_document.back() + shard.documents());
    stats.loss_mask = stats.loss_mask || shard.has_loss_mask();
  }
  const std::vector<int64_t> lengths = document_lengths(source);
  source.key = derive_key(static_cast<uint64_t>(options_.seed), static_cast<uint64_t>(index));
  source.epoch = plan_stage(source, lengths, {0, options_.seq_len, options_.packing, options_.teacher_seq_len}, &stats);
  if (auto* packed = std::get_if<PackedSequences>(&source.epoch.sequences)) {
    spread(*packed, options_.least_sequences);
  }
  stats.shards = static_cast<int64_t>(source.shards.size());
  stats.documents = static_cast<int64_t>(lengths.size());
  stats.tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  stats.samples = source.epoch.size();
  if (const auto* packed = std::get_if<PackedSequences>(&source.epoch.sequences)) {
    stats.padding = packed->padding;
    stats.teacher_padding = packed->teacher_padding;
  } else {
    stats.padding = stats.samples * options_.seq_len - (stats.tokens - 1);
  }
}

std::vector<const Shard*> Dataset::shards() const {
  std::vector<const Shard*> all;
  for (const Source& source : sources_) {
    for (const Shard& shard : source.shards) {
      all.push_back(&shard);
    }
  }
  return all;
}

const std::string& Dataset::source_of(const Shard& shard) const {
  const auto has = [&shard](const Source& source) {
    return std::any_of(source.shards.begin(), source.shards.end(), [&](const Shard& own) { return &own == &shard; });
  };
  const auto found = std::find_if(sources_.begin(), sources_.end(), has);
  TORCH_CHECK(found != sources_.end(), shard.path(), ": is no shard of the data set");
  return options_.sources[static_cast<size_t>(found - sources_.begin())].path;
}

base::Digest Dataset::fingerprint(const Stage& stage) const {
  base::Sha256 hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(stage.seq_len);
  add(options_.seed);
  add(static_cast<uint8_t>(stage.packing == PackingMode::kPack));
  add(static_cast<uint8_t>(options_.shuffle));
  add(static_cast<uint8_t>(options_.once));
  if (teacher_len_ > 0) {
    add(teacher_length(stage));
  }
  if (options_.least_sequences > 0) {
    add(options_.least_sequences);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    add(options_.sources[i].weight);
    add(static_cast<uint64_t>(sources_[i].shards.size()));
    for (const Shard& shard : sources_[i].shards) {
      hash.update(shard.header().header_hash, sizeof(ShardHeader::header_hash));
    }
  }
  return hash.finish();
}

} // namespace distill::data
