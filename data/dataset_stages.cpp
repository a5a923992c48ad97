#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "data/base/status_macros.h"
#include "data/dataset.h"
#include "data/random.h"

// This file lets a run go on with another sequence length or packing.
namespace distill::data {

namespace {

// Part of the key that shuffles what is left of an epoch, so that its order differs from the order of every epoch.
constexpr uint64_t kRestKey = 0x7265737400000000;

// `teacher_len`: tokens of the teacher's sequences; 0: no teacher stream.
absl::Status check_stages(const std::vector<Stage>& stages, const DataOptions& options, int64_t teacher_len) {
  if (stages.empty() || stages[0].first_sample < 0) {
    return absl::InvalidArgumentError("data stages: expected at least one, the first from sample 0 or a later one on");
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    const bool fits =
        stage.seq_len >= 2 && stage.seq_len <= INT32_MAX && (i == 0 || stage.first_sample > stages[i - 1].first_sample);
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data stage %d: expected a later sample than the stage before it and seq_len of 2 to 2^31 - 1, "
          "found sample %d, seq_len %d",
          i, stage.first_sample, stage.seq_len));
    }
  }
  const auto concat = std::find_if(
      stages.begin(), stages.end(), [](const Stage& stage) { return stage.packing == PackingMode::kConcat; });
  if (teacher_len > 0 && concat != stages.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data stage %d: expected pack for data with a teacher stream, found concat", concat - stages.begin()));
  }
  const Stage& last = stages.back();
  const int64_t last_teacher = last.teacher_seq_len > 0 ? last.teacher_seq_len : last.seq_len;
  if (teacher_len > 0 && last_teacher != teacher_len) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data stages: expected the last one to have the options' teacher_seq_len %d, found %d", teacher_len,
        last_teacher));
  }
  if (last.seq_len != options.seq_len || last.packing != options.packing) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "data stages: expected the last one to have the length and packing of the options, seq_len %d and %s, "
        "found seq_len %d and %s",
        options.seq_len, base::enum_name(options.packing), last.seq_len, base::enum_name(last.packing)));
  }
  return absl::OkStatus();
}

int64_t count_tokens(const SequencePlan& rest) {
  int64_t tokens = 0;
  for (const Fragment& fragment : rest.fragments) {
    tokens += fragment.end - fragment.begin;
  }
  return tokens;
}

} // namespace

// The plan of a whole epoch in this stage.
SequencePlan Dataset::plan_stage(
    const Source& source, absl::Span<const int64_t> lengths, const Stage& stage, SourceStats* stats) const {
  const std::optional<uint64_t> key = options_.shuffle ? std::make_optional(source.key) : std::nullopt;
  if (teacher_len_ > 0) {
    return plan_sequences(document_sizes(source, stage, stats), stage.seq_len, teacher_length(stage), key);
  }
  if (stats != nullptr && stage.packing == PackingMode::kPack) {
    stats->split_documents =
        std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) { return length > stage.seq_len; });
  }
  return plan_sequences(lengths, stage.seq_len, stage.packing == PackingMode::kPack, key);
}

// The plan of what is left of an epoch.
SequencePlan Dataset::plan_rest(
    const Source& source, std::vector<Fragment> fragments, const Stage& stage, std::optional<uint64_t> key) const {
  if (teacher_len_ > 0) {
    const std::vector<DocumentSize> sizes = fragment_sizes(source, fragments, stage);
    return plan_sequences(sizes, stage.seq_len, teacher_length(stage), key, std::move(fragments));
  }
  return plan_sequences(std::move(fragments), stage.seq_len, stage.packing == PackingMode::kPack, key);
}

// For each of `size` sequences whether it is among the first `count` samples.
std::vector<bool> Dataset::sequences_read(uint64_t key, int64_t size, int64_t count) const {
  std::vector<bool> read(static_cast<size_t>(size), false);
  for (int64_t sample = 0; sample < count; ++sample) {
    read[static_cast<size_t>(permuted(key, size, sample))] = true;
  }
  return read;
}

// Moves a source from the beginning of a stage to the beginning of the next one. `epoch`: the plan of a whole epoch of
// the stage that ends. `samples`: how many of its samples have been read.
void Dataset::end_stage(
    Source& source, absl::Span<const int64_t> lengths, const SequencePlan& epoch, int64_t samples, const Stage& next,
    int64_t stage_number) const {
  source.first_sample += samples;
  std::vector<Fragment> left;
  const int64_t rest = source.rest ? source.rest->size() : 0;
  if (samples < rest) {
    left = unread_fragments(*source.rest, lengths, sequences_read(source.rest_key, rest, samples));
  } else {
    const int64_t sequences = epoch.size(), read = (samples - rest) % sequences;
    const int64_t current = source.first_epoch + (samples - rest) / sequences;
    source.first_epoch = current;
    if (read > 0) {
      const uint64_t key = derive_key(source.key, static_cast<uint64_t>(current) + 1);
      left = unread_fragments(epoch, lengths, sequences_read(key, sequences, read));
      source.first_epoch = current + 1;
    }
  }
  source.rest.reset();
  if (!left.empty()) {
    source.rest_key = derive_key(source.key ^ kRestKey, static_cast<uint64_t>(stage_number));
    const std::optional<uint64_t> key = options_.shuffle ? std::make_optional(source.rest_key) : std::nullopt;
    source.rest = plan_rest(source, std::move(left), next, key);
    if (source.rest->size() == 0) { // no completion of these documents fits into the new lengths
      source.rest.reset();
    }
  }
}

absl::StatusOr<std::vector<std::string>> Dataset::continue_from(const std::vector<Stage>& stages) {
  TORCH_CHECK(!options_.once, "an evaluation has no stages");
  RETURN_IF_ERROR(check_stages(stages, options_, teacher_len_));
  std::vector<std::string> lines;
  origin_ = stages.front().first_sample;
  for (size_t s = 0; s < sources_.size(); ++s) {
    Source& source = sources_[s];
    const std::vector<int64_t> lengths = document_lengths(source);
    source.first_sample = source.first_epoch = 0;
    source.rest.reset();
    for (size_t i = 0; i + 1 < stages.size(); ++i) {
      const auto index = static_cast<int64_t>(s);
      const int64_t samples = mixer_->count_before(stages[i + 1].first_sample - origin_, index) -
          mixer_->count_before(stages[i].first_sample - origin_, index);
      end_stage(
          source, lengths, plan_stage(source, lengths, stages[i]), samples, stages[i + 1], static_cast<int64_t>(i) + 1);
    }
    if (source.rest) {
      lines.push_back(absl::StrFormat(
          "%s: epoch %d continues with its %d unread tokens (%d fragments of documents) in %d samples of %d",
          stats_[s].path, source.first_epoch, count_tokens(*source.rest), source.rest->fragments.size(),
          source.rest->size(), options_.seq_len));
    } else if (stages.size() > 1) {
      lines.push_back(absl::StrFormat("%s: epoch %d begins", stats_[s].path, source.first_epoch + 1));
    }
  }
  first_sample_ = stages.back().first_sample;
  return lines;
}

} // namespace distill::data
