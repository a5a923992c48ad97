#include "data/dataset.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "data/random.h"

// How a sample's number becomes a row of a batch.
namespace distill::data {

namespace {

constexpr int64_t kIgnoreIndex = -100;
constexpr int64_t kPadding = 0; // a token id that every vocabulary has

} // namespace

// One row under construction. Segments are appended to the batch's boundaries.
struct Dataset::RowView {
  int64_t* tokens_S;
  int64_t* targets_S;
  int64_t* positions_S;
  int64_t seq_len;
  int64_t flat_begin; // of the row in the flattened batch
  std::vector<int32_t>& cu_seqlens;
  int64_t& max_seqlen;
  std::vector<int64_t> stream; // scratch

  // Ends the segment that began where the last one ended, at `end` in the row.
  void close_segment(int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      positions_S[s] = s - begin;
    }
    cu_seqlens.push_back(static_cast<int32_t>(flat_begin + end));
    max_seqlen = std::max(max_seqlen, end - begin);
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
    if (sample < sources_[i].samples) {
      return {static_cast<int64_t>(i), sample};
    }
    sample -= sources_[i].samples;
  }
  return {-1, sample};
}

Dataset::DocumentPlace Dataset::find(const Source& source, int64_t document) {
  const auto& first = source.first_document;
  const auto shard = std::upper_bound(first.begin(), first.end(), document) - first.begin() - 1;
  return {&source.shards[shard], document - first[shard]};
}

absl::Status Dataset::fill_row(int64_t sample, RowView& row) const {
  const Mixer::Place place = locate(sample);
  if (place.source < 0) {
    row.pad(0);
    row.close_segment(0, row.seq_len);
    return absl::OkStatus();
  }
  const Source& source = sources_[place.source];
  const int64_t epoch = place.sample / source.samples;
  int64_t index = place.sample % source.samples;
  if (options_.shuffle) {
    const uint64_t key = derive_key(source.key, static_cast<uint64_t>(epoch) + 1);
    index = static_cast<int64_t>(Permutation(source.samples, key)(static_cast<uint64_t>(index)));
  }
  if (const auto* packed = std::get_if<PackedRows>(&source.rows)) {
    return fill_packed(source, *packed, index, row);
  }
  return fill_concat(source, std::get<ConcatRows>(source.rows), index, row);
}

absl::Status Dataset::fill_packed(const Source& source, const PackedRows& plan, int64_t index, RowView& row) const {
  int64_t at = 0;
  for (const Piece& piece : plan.row(index)) {
    const DocumentPlace place = find(source, piece.document);
    const int64_t document_begin = place.shard->document_begin(place.document);
    const int64_t document_end = place.shard->document_begin(place.document + 1);
    const int64_t begin = document_begin + piece.part * plan.seq_len;
    const int64_t length = std::min(document_end - begin, plan.seq_len);
    // A part in the middle of a document still predicts the next part's first token.
    const int64_t readable = std::min(document_end - begin, length + 1);
    row.stream.resize(readable);
    if (absl::Status status = place.shard->read_tokens(begin, absl::MakeSpan(row.stream)); !status.ok()) {
      return status;
    }
    for (int64_t i = 0; i < length; ++i) {
      row.tokens_S[at + i] = row.stream[i];
      const bool has_target = i + 1 < readable && place.shard->in_loss(begin + i + 1);
      row.targets_S[at + i] = has_target ? row.stream[i + 1] : kIgnoreIndex;
    }
    row.close_segment(at, at + length);
    at += length;
  }
  if (at < row.seq_len) {
    row.pad(at);
    row.close_segment(at, row.seq_len);
  }
  return absl::OkStatus();
}

absl::Status Dataset::fill_concat(const Source& source, const ConcatRows& plan, int64_t index, RowView& row) const {
  const int64_t first = index * plan.seq_len;
  const int64_t readable = std::min(plan.tokens() - first, plan.seq_len + 1);
  row.stream.resize(readable);
  auto document = std::upper_bound(plan.begin.begin(), plan.begin.end(), first) - plan.begin.begin() - 1;
  for (int64_t i = 0; i < readable; ++document) {
    const DocumentPlace place = find(source, plan.order[document]);
    const int64_t skip = first + i - plan.begin[document];
    const int64_t count = std::min(plan.begin[document + 1] - plan.begin[document] - skip, readable - i);
    const int64_t begin = place.shard->document_begin(place.document) + skip;
    if (absl::Status status = place.shard->read_tokens(begin, absl::MakeSpan(row.stream).subspan(i, count));
        !status.ok()) {
      return status;
    }
    for (int64_t j = 0; j < count; ++j) {
      if (i + j > 0) {
        row.targets_S[i + j - 1] = place.shard->in_loss(begin + j) ? row.stream[i + j] : kIgnoreIndex;
      }
    }
    i += count;
  }
  std::copy_n(row.stream.begin(), std::min(readable, plan.seq_len), row.tokens_S);
  row.pad(readable - 1);
  row.close_segment(0, row.seq_len);
  return absl::OkStatus();
}

absl::StatusOr<Batch> Dataset::batch(int64_t first, int64_t count) const {
  if (first < 0 || count < 1 || first > INT64_MAX - count || count > INT32_MAX / options_.seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: expected first >= 0, count >= 1 and fewer than 2^31 tokens, found first ", first, ", count ", count,
        ", seq_len ", options_.seq_len));
  }
  const auto kind = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pin_memory);
  Batch batch;
  batch.tokens_BS = at::empty({count, options_.seq_len}, kind);
  batch.targets_BS = at::empty({count, options_.seq_len}, kind);
  batch.positions_BS = at::empty({count, options_.seq_len}, kind);
  batch.packed = options_.packing == "pack";
  std::vector<int32_t> cu_seqlens = {0};
  RowView row{
      batch.tokens_BS.mutable_data_ptr<int64_t>(),
      batch.targets_BS.mutable_data_ptr<int64_t>(),
      batch.positions_BS.mutable_data_ptr<int64_t>(),
      options_.seq_len,
      0,
      cu_seqlens,
      batch.max_seqlen,
      {}};
  for (int64_t b = 0; b < count; ++b) {
    if (absl::Status status = fill_row(first + b, row); !status.ok()) {
      return status;
    }
    batch.valid_tokens += row.seq_len - std::count(row.targets_S, row.targets_S + row.seq_len, kIgnoreIndex);
    row.tokens_S += row.seq_len;
    row.targets_S += row.seq_len;
    row.positions_S += row.seq_len;
    row.flat_begin += row.seq_len;
  }
  batch.cu_seqlens = at::empty({static_cast<int64_t>(cu_seqlens.size())}, kind.dtype(at::kInt));
  std::copy(cu_seqlens.begin(), cu_seqlens.end(), batch.cu_seqlens.mutable_data_ptr<int32_t>());
  return batch;
}

} // namespace distill::data
