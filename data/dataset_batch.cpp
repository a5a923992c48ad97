#include "data/base/status_macros.h"
#include "data/dataset.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "data/random.h"

// From a sample's number to its tokens in a batch.
namespace distill::data {

namespace {

constexpr int64_t kIgnoreIndex = -100;
constexpr int64_t kPadding = 0; // a token id that exists in every vocabulary

} // namespace

// One sequence of a batch that is being filled. S: seq_len. Segment boundaries are appended to the batch's cu_seqlens.
struct Dataset::SequenceBuilder {
  int64_t* tokens_S;
  int64_t* targets_S;
  int64_t* positions_S;
  int64_t seq_len;
  int64_t flat_begin; // position of the sequence in the flattened batch
  std::vector<int32_t>& cu_seqlens;
  int64_t& max_seqlen;
  std::vector<int64_t> stream; // tokens read from the shard, and the target of the last one

  // Adds the segment [begin, end) of the sequence, which follows the previous one.
  void close_segment(int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      positions_S[s] = s - begin;
    }
    cu_seqlens.push_back(static_cast<int32_t>(flat_begin + end));
    max_seqlen = std::max(max_seqlen, end - begin);
  }

  // Copies tokens [begin, begin + length) of a shard to position `at`, each with the next token as its target.
  // `readable`: `length`, or one more where the last token has a target within its document.
  absl::Status read(const Shard& shard, int64_t begin, int64_t length, int64_t readable, int64_t at) {
    stream.resize(readable);
    RETURN_IF_ERROR(shard.read_tokens(begin, absl::MakeSpan(stream)));
    for (int64_t i = 0; i < length; ++i) {
      tokens_S[at + i] = stream[i];
      const bool has_target = i + 1 < readable && shard.in_loss(begin + i + 1);
      targets_S[at + i] = has_target ? stream[i + 1] : kIgnoreIndex;
    }
    return absl::OkStatus();
  }

  void pad(int64_t begin) {
    std::fill(tokens_S + begin, tokens_S + seq_len, kPadding);
    std::fill(targets_S + begin, targets_S + seq_len, kIgnoreIndex);
  }
};

Mixer::Place Dataset::locate(int64_t sample) const {
  if (mixer_) {
    return mixer_->locate(sample);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sample < stats_[i].samples) {
      return {static_cast<int64_t>(i), sample};
    }
    sample -= stats_[i].samples;
  }
  return {-1, sample};
}

Dataset::DocumentPlace Dataset::find(const Source& source, int64_t document) {
  const auto& first = source.first_document;
  const auto shard = std::upper_bound(first.begin(), first.end(), document) - first.begin() - 1;
  return {&source.shards[shard], document - first[shard]};
}

absl::Status Dataset::fill_sequence(int64_t sample, SequenceBuilder& sequence) const {
  const Mixer::Place place = locate(sample);
  if (place.source < 0) {
    sequence.pad(0);
    sequence.close_segment(0, sequence.seq_len);
    return absl::OkStatus();
  }
  const Source& source = sources_[place.source];
  const auto [plan, index] = find_sequence(source, place.sample);
  if (const auto* packed = std::get_if<PackedSequences>(&plan->sequences)) {
    return fill_packed(source, *plan, *packed, index, sequence);
  }
  return fill_concat(source, *plan, std::get<ConcatSequences>(plan->sequences), index, sequence);
}

Dataset::SequencePlace Dataset::find_sequence(const Source& source, int64_t sample) const {
  sample -= source.first_sample;
  if (source.rest) {
    if (sample < source.rest->size()) {
      return {&*source.rest, permuted(source.rest_key, source.rest->size(), sample)};
    }
    sample -= source.rest->size();
  }
  const int64_t sequences = source.epoch.size();
  const int64_t epoch = source.first_epoch + sample / sequences;
  return {
      &source.epoch, permuted(derive_key(source.key, static_cast<uint64_t>(epoch) + 1), sequences, sample % sequences)};
}

int64_t Dataset::permuted(uint64_t key, int64_t size, int64_t index) const {
  return options_.shuffle ? static_cast<int64_t>(Permutation(size, key)(static_cast<uint64_t>(index))) : index;
}

// The fragment that a plan calls document `index`.
Fragment Dataset::fragment_of(const Source& source, const SequencePlan& plan, uint32_t index) {
  if (!plan.whole) {
    return plan.fragments[index];
  }
  const DocumentPlace place = find(source, index);
  return {index, 0, place.shard->document_length(place.document)};
}

absl::Status Dataset::fill_packed(
    const Source& source, const SequencePlan& plan, const PackedSequences& sequences, int64_t index,
    SequenceBuilder& sequence) const {
  int64_t at = 0;
  for (const Piece& piece : sequences.sequence(index)) {
    const Fragment fragment = fragment_of(source, plan, piece.document);
    const DocumentPlace place = find(source, fragment.document);
    const int64_t document_begin = place.shard->document_begin(place.document);
    const int64_t document_end = place.shard->document_begin(place.document + 1);
    const int64_t begin = document_begin + fragment.begin + piece.part * sequences.seq_len;
    const int64_t length = std::min(document_begin + fragment.end - begin, sequences.seq_len);
    // The last token of a part has the next part's first token as its target.
    const int64_t readable = std::min(document_end - begin, length + 1);
    RETURN_IF_ERROR(sequence.read(*place.shard, begin, length, readable, at));
    sequence.close_segment(at, at + length);
    at += length;
  }
  if (at < sequence.seq_len) {
    sequence.pad(at);
    sequence.close_segment(at, sequence.seq_len);
  }
  return absl::OkStatus();
}

absl::Status Dataset::fill_concat(
    const Source& source, const SequencePlan& plan, const ConcatSequences& sequences, int64_t index,
    SequenceBuilder& sequence) const {
  const int64_t first = index * sequences.seq_len;
  const int64_t count = std::min(sequences.inputs - first, sequences.seq_len);
  auto entry = std::upper_bound(sequences.begin.begin(), sequences.begin.end(), first) - sequences.begin.begin() - 1;
  for (int64_t at = 0; at < count; ++entry) {
    const Fragment fragment = fragment_of(source, plan, sequences.order[entry]);
    const DocumentPlace place = find(source, fragment.document);
    const int64_t skip = first + at - sequences.begin[entry];
    const int64_t length = std::min(sequences.begin[entry + 1] - sequences.begin[entry] - skip, count - at);
    const int64_t begin = place.shard->document_begin(place.document) + fragment.begin + skip;
    const int64_t readable = std::min(place.shard->document_begin(place.document + 1) - begin, length + 1);
    RETURN_IF_ERROR(sequence.read(*place.shard, begin, length, readable, at));
    at += length;
    // A document's last token has the next document's first token as its target.
    if (readable == length && entry + 1 < static_cast<int64_t>(sequences.order.size())) {
      const Fragment next = fragment_of(source, plan, sequences.order[entry + 1]);
      const DocumentPlace next_place = find(source, next.document);
      const int64_t token = next_place.shard->document_begin(next_place.document);
      if (next.begin == 0 && next_place.shard->in_loss(token)) {
        absl::Status status = next_place.shard->read_tokens(token, absl::MakeSpan(&sequence.targets_S[at - 1], 1));
        if (!status.ok()) {
          return status;
        }
      }
    }
  }
  sequence.pad(std::max<int64_t>(count, 0));
  sequence.close_segment(0, sequence.seq_len);
  return absl::OkStatus();
}

absl::StatusOr<Batch> Dataset::batch(int64_t first, int64_t count) const {
  if (first < first_sample_ || count < 1 || first > INT64_MAX - count || count > INT32_MAX / options_.seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: expected first >= ", first_sample_, ", count >= 1 and fewer than 2^31 tokens, found first ", first,
        ", count ", count, ", seq_len ", options_.seq_len));
  }
  const auto kind = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pin_memory);
  Batch batch;
  batch.tokens_BS = at::empty({count, options_.seq_len}, kind);
  batch.targets_BS = at::empty({count, options_.seq_len}, kind);
  batch.positions_BS = at::empty({count, options_.seq_len}, kind);
  batch.packed = options_.packing == PackingMode::kPack;
  std::vector<int32_t> cu_seqlens = {0};
  SequenceBuilder sequence{
      batch.tokens_BS.mutable_data_ptr<int64_t>(),
      batch.targets_BS.mutable_data_ptr<int64_t>(),
      batch.positions_BS.mutable_data_ptr<int64_t>(),
      options_.seq_len,
      0,
      cu_seqlens,
      batch.max_seqlen,
      {}};
  for (int64_t b = 0; b < count; ++b) {
    RETURN_IF_ERROR(fill_sequence(first + b, sequence));
    batch.valid_tokens +=
        sequence.seq_len - std::count(sequence.targets_S, sequence.targets_S + sequence.seq_len, kIgnoreIndex);
    sequence.tokens_S += sequence.seq_len;
    sequence.targets_S += sequence.seq_len;
    sequence.positions_S += sequence.seq_len;
    sequence.flat_begin += sequence.seq_len;
  }
  batch.cu_seqlens = at::empty({static_cast<int64_t>(cu_seqlens.size())}, kind.dtype(at::kInt));
  std::copy(cu_seqlens.begin(), cu_seqlens.end(), batch.cu_seqlens.mutable_data_ptr<int32_t>());
  return batch;
}

} // namespace distill::data
