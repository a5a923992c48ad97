#include "data/base/status_macros.h"
#include "data/dataset.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "data/random.h"

// This file finds the tokens of a sample and puts them into a batch.
namespace distill::data {

namespace {

constexpr int64_t kIgnoreIndex = -100;
constexpr int64_t kPadding = 0; // a token id that exists in every vocabulary

// The tokens of one sequence of a batch that is being filled, S of them.
struct TokenRow {
  int64_t* tokens_S;
  int64_t* positions_S;
  int64_t seq_len;
  int64_t flat_begin; // position of the sequence in the flattened batch
  std::vector<int32_t> cu_seqlens = {0}; // of all sequences so far
  int64_t max_seqlen = 0;

  // Adds the segment [begin, end) of the sequence, which follows the previous one.
  void close_segment(int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      positions_S[s] = s - begin;
    }
    cu_seqlens.push_back(static_cast<int32_t>(flat_begin + end));
    max_seqlen = std::max(max_seqlen, end - begin);
  }

  // Fills the rest of the sequence with padding, a segment of its own.
  void pad(int64_t begin) {
    std::fill(tokens_S + begin, tokens_S + seq_len, kPadding);
    if (begin < seq_len) {
      close_segment(begin, seq_len);
    }
  }

  void next_sequence() {
    tokens_S += seq_len;
    positions_S += seq_len;
    flat_begin += seq_len;
  }

  at::Tensor segments(const at::TensorOptions& kind) const {
    at::Tensor out = at::empty({static_cast<int64_t>(cu_seqlens.size())}, kind.dtype(at::kInt));
    std::copy(cu_seqlens.begin(), cu_seqlens.end(), out.mutable_data_ptr<int32_t>());
    return out;
  }
};

// The part of a sequence that comes from the stream's document `entry`: the document's tokens after the first `skip`
// ones, which begin at position `at` of the sequence.
struct Cut {
  size_t entry;
  int64_t skip, tokens, at;
};

template <typename Visit>
void for_each_cut(const ConcatSequences& sequences, int64_t index, const Visit& visit) {
  const int64_t first = index * sequences.seq_len;
  const int64_t count = std::max<int64_t>(0, std::min(sequences.inputs - first, sequences.seq_len));
  auto entry = static_cast<size_t>(
      std::upper_bound(sequences.begin.begin(), sequences.begin.end(), first) - sequences.begin.begin() - 1);
  for (int64_t at = 0; at < count; ++entry) {
    const int64_t skip = first + at - sequences.begin[entry];
    const int64_t tokens = std::min(sequences.begin[entry + 1] - sequences.begin[entry] - skip, count - at);
    visit(Cut{entry, skip, tokens, at});
    at += tokens;
  }
}

} // namespace

namespace {

// The pieces of a batch that is being filled: spans, and single tokens.
struct PieceLists {
  struct List {
    std::vector<int64_t> rows, pieces, first_rows, teacher_rows, teacher_pieces, teacher_targets;
    int64_t count = 0;
  };
  List spans, singles;

  AlignedPieces finish(const at::TensorOptions& kind) const {
    AlignedPieces out;
    const auto join = [&](std::vector<int64_t> List::*member, int64_t added) {
      const std::vector<int64_t>&first = spans.*member, &second = singles.*member;
      at::Tensor all = at::empty({static_cast<int64_t>(first.size() + second.size())}, kind);
      auto* to = std::copy(first.begin(), first.end(), all.mutable_data_ptr<int64_t>());
      std::transform(second.begin(), second.end(), to, [added](int64_t value) { return value + added; });
      return all;
    };
    out.rows_P = join(&List::rows, 0);
    out.pieces_P = join(&List::pieces, spans.count);
    out.first_rows_Z = join(&List::first_rows, 0);
    out.teacher_rows_Q = join(&List::teacher_rows, 0);
    out.teacher_pieces_Q = join(&List::teacher_pieces, spans.count);
    out.teacher_targets_Q = join(&List::teacher_targets, 0);
    out.spans = spans.count;
    out.pieces = spans.count + singles.count;
    out.span_tokens = static_cast<int64_t>(spans.rows.size());
    out.teacher_span_tokens = static_cast<int64_t>(spans.teacher_rows.size());
    return out;
  }
};

} // namespace

// One sequence of a batch that is being filled.
struct Dataset::SequenceBuilder {
  TokenRow student;
  int64_t* targets_S;
  std::optional<TokenRow> teacher; // with a teacher stream
  int64_t* rows_S = nullptr; // with a teacher stream: TeacherBatch::rows_BS
  std::vector<Stretch>& stretches; // of the batch
  std::vector<int64_t> stream; // tokens read from the shard, and the target of the last one
  TeacherText texts;
  PieceLists pieces; // of a teacher with a tokenizer of its own

  // Copies tokens [begin, begin + length) of a shard to position `at`, each with the next token as its target.
  // `readable`: `length`, or one more where the last token has a target within its document.
  absl::Status read(const Shard& shard, int64_t begin, int64_t length, int64_t readable, int64_t at) {
    stream.resize(readable);
    RETURN_IF_ERROR(shard.read_tokens(begin, absl::MakeSpan(stream)));
    for (int64_t i = 0; i < length; ++i) {
      student.tokens_S[at + i] = stream[i];
      const bool has_target = i + 1 < readable && shard.has_target(begin + i + 1);
      targets_S[at + i] = has_target ? stream[i + 1] : kIgnoreIndex;
    }
    return absl::OkStatus();
  }

  // The teacher reads the student's tokens [at, at + length) too, at its own position `teacher_at`.
  void read_same(int64_t at, int64_t length, int64_t teacher_at) {
    std::copy_n(student.tokens_S + at, length, teacher->tokens_S + teacher_at);
    for (int64_t i = 0; i < length; ++i) {
      rows_S[at + i] = teacher->flat_begin + teacher_at + i;
    }
  }

  // A document with a text of the teacher's own: both texts at their positions, and the completion's tokens that have a
  // predecessor in both as targets.
  absl::Status read_both(
      const Shard& shard, int64_t document, const TextLengths& lengths, int64_t at, int64_t teacher_at) {
    RETURN_IF_ERROR(read_texts(shard, document, lengths, texts));
    std::copy(texts.tokens.begin(), texts.tokens.end(), student.tokens_S + at);
    std::copy(texts.teacher_tokens.begin(), texts.teacher_tokens.end(), teacher->tokens_S + teacher_at);
    std::fill_n(targets_S + at, lengths.tokens, kIgnoreIndex);
    std::fill_n(rows_S + at, lengths.tokens, teacher->flat_begin + teacher_at);
    for (const TeacherText::Pair& pair : texts.completion) {
      if (pair.token > 0 && pair.teacher_token > 0) {
        targets_S[at + pair.token - 1] = texts.tokens[pair.token];
        rows_S[at + pair.token - 1] = teacher->flat_begin + teacher_at + pair.teacher_token - 1;
      }
    }
    return absl::OkStatus();
  }

  // The same for a teacher with a tokenizer of its own. All of the completion's tokens are targets; those of a piece
  // are compared where its first token has a predecessor in both texts.
  absl::Status read_aligned(
      const Shard& shard, int64_t document, const TextLengths& lengths, const TextAlignment& alignment, int64_t at,
      int64_t teacher_at) {
    RETURN_IF_ERROR(read_texts(shard, document, lengths, texts, &alignment));
    for (size_t i = 0; i < texts.teacher_tokens.size(); ++i) {
      int64_t& id = texts.teacher_tokens[i];
      const int64_t row = alignment.teacher_row(id);
      if (row < 0) {
        return absl::DataLossError(absl::StrCat(
            shard.path(), ": document ", document, ", teacher token ", i,
            ": expected an id with a row in the teacher's "
            "tables, found ",
            id, " (\"", alignment.teacher_text(id), "\")"));
      }
      id = row;
    }
    std::copy(texts.tokens.begin(), texts.tokens.end(), student.tokens_S + at);
    std::copy(texts.teacher_tokens.begin(), texts.teacher_tokens.end(), teacher->tokens_S + teacher_at);
    const int64_t begin = shard.document_begin(document);
    for (int64_t i = 0; i < lengths.tokens; ++i) {
      const bool has_target = i + 1 < lengths.tokens && shard.has_target(begin + i + 1);
      targets_S[at + i] = has_target ? texts.tokens[i + 1] : kIgnoreIndex;
    }
    std::fill_n(rows_S + at, lengths.tokens, teacher->flat_begin + teacher_at);
    for (const TeacherText::Pair& piece : texts.completion) {
      if (piece.token == 0 || piece.teacher_token == 0) {
        continue;
      }
      const int64_t row = at + piece.token - 1,
                    teacher_row = teacher->flat_begin + teacher_at + piece.teacher_token - 1;
      rows_S[row] = teacher_row;
      PieceLists::List& list = piece.tokens != 1 || piece.teacher_tokens != 1 ? pieces.spans : pieces.singles;
      list.first_rows.push_back(student.flat_begin + row);
      for (int64_t i = 0; i < piece.tokens; ++i) {
        list.rows.push_back(student.flat_begin + row + i);
        list.pieces.push_back(list.count);
      }
      for (int64_t i = 0; i < piece.teacher_tokens; ++i) {
        list.teacher_rows.push_back(teacher_row + i);
        list.teacher_pieces.push_back(list.count);
        list.teacher_targets.push_back(texts.teacher_tokens[piece.teacher_token + i]);
      }
      ++list.count;
    }
    return absl::OkStatus();
  }

  // Fills the rest of both sequences with padding.
  void pad(int64_t begin, int64_t teacher_begin) {
    std::fill(targets_S + begin, targets_S + student.seq_len, kIgnoreIndex);
    student.pad(begin);
    if (teacher) {
      std::fill(rows_S + begin, rows_S + student.seq_len, teacher->flat_begin);
      teacher->pad(teacher_begin);
    }
  }

  void next_sequence() {
    targets_S += student.seq_len;
    if (teacher) {
      rows_S += student.seq_len;
      teacher->next_sequence();
    }
    student.next_sequence();
  }
};

Mixer::Place Dataset::locate(int64_t sample) const {
  if (mixer_) {
    return mixer_->locate(sample);
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    const int64_t own = sample - sources_[i].once_begin;
    if (own >= 0 && own < stats_[i].samples) {
      return {static_cast<int64_t>(i), own};
    }
  }
  return {-1, sample};
}

int64_t Dataset::teacher_of(int64_t sample) const {
  sample -= origin_;
  if (!has_several_teachers()) {
    return 0;
  }
  if (mixer_) {
    return mixer_->teacher_of(sample);
  }
  const auto teachers = static_cast<int64_t>(options_.teachers.size());
  if (sample >= num_samples_) {
    return (sample - num_samples_) % teachers;
  }
  return std::upper_bound(once_end_.begin(), once_end_.end(), sample) - once_end_.begin();
}

Dataset::DocumentPlace Dataset::find(const Source& source, int64_t document) {
  const auto& first = source.first_document;
  document = source.documents.empty() ? document : source.documents[static_cast<size_t>(document)];
  const auto shard = std::upper_bound(first.begin(), first.end(), document) - first.begin() - 1;
  return {&(*source.shards)[static_cast<size_t>(shard)], document - first[shard]};
}

absl::Status Dataset::fill_sequence(int64_t sample, SequenceBuilder& sequence) const {
  const Mixer::Place place = locate(sample);
  if (place.source < 0) {
    sequence.pad(0, 0);
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

Stretch Dataset::stretch_of(
    const Source& source, const SequencePlan& plan, const PackedSequences& sequences, const Piece& piece) const {
  const Fragment fragment = fragment_of(source, plan, piece.document);
  const DocumentPlace place = find(source, fragment.document);
  if (piece.both_texts()) {
    const TextLengths lengths =
        fit_texts(*place.shard, place.document, options_.seq_len, teacher_len_, alignment_of(source));
    Stretch stretch{.shard = place.shard, .document = place.document, .tokens = lengths.tokens};
    stretch.teacher_tokens = alignment_of(source) != nullptr ? lengths.teacher_tokens : 0;
    return stretch;
  }
  const int64_t begin = fragment.begin + piece.part * sequences.part_len;
  return {place.shard, place.document, begin, std::min(fragment.end - begin, sequences.part_len), 0};
}

void Dataset::for_each_stretch(const std::function<void(const Stretch&)>& visit, int64_t teacher) const {
  for (const Source& source : sources_) {
    if (teacher >= 0 && source.teacher != teacher) {
      continue;
    }
    for (const SequencePlan* plan : {source.rest ? &*source.rest : nullptr, &source.epoch}) {
      const auto* packed = plan != nullptr ? std::get_if<PackedSequences>(&plan->sequences) : nullptr;
      for (const Piece& piece : packed != nullptr ? absl::MakeConstSpan(packed->pieces) : absl::Span<const Piece>()) {
        visit(stretch_of(source, *plan, *packed, piece));
      }
      const auto* concat = plan != nullptr ? std::get_if<ConcatSequences>(&plan->sequences) : nullptr;
      for (int64_t i = 0; concat != nullptr && i < concat->count(); ++i) {
        for_each_cut(*concat, i, [&](const Cut& cut) {
          const Fragment fragment = fragment_of(source, *plan, concat->order[cut.entry]);
          const DocumentPlace place = find(source, fragment.document);
          visit({place.shard, place.document, fragment.begin + cut.skip, cut.tokens, cut.at});
        });
      }
    }
  }
}

absl::Status Dataset::fill_packed(
    const Source& source, const SequencePlan& plan, const PackedSequences& sequences, int64_t index,
    SequenceBuilder& sequence) const {
  int64_t at = 0, teacher_at = 0;
  for (const Piece& piece : sequences.sequence(index)) {
    Stretch stretch = stretch_of(source, plan, sequences, piece);
    stretch.at = sequence.student.flat_begin + at;
    const Shard& shard = *stretch.shard;
    int64_t teacher_length = stretch.tokens;
    if (piece.both_texts()) {
      const TextLengths lengths =
          fit_texts(shard, stretch.document, options_.seq_len, teacher_len_, alignment_of(source));
      const TextAlignment* alignment = alignment_of(source);
      RETURN_IF_ERROR(
          alignment != nullptr ? sequence.read_aligned(shard, stretch.document, lengths, *alignment, at, teacher_at)
                               : sequence.read_both(shard, stretch.document, lengths, at, teacher_at));
      teacher_length = lengths.teacher_tokens;
      stretch.teacher_at = alignment != nullptr ? sequence.teacher->flat_begin + teacher_at : 0;
    } else {
      const int64_t begin = shard.document_begin(stretch.document) + stretch.begin;
      // The last token of a part has the next part's first token as its target.
      const int64_t readable = std::min(shard.document_begin(stretch.document + 1) - begin, stretch.tokens + 1);
      RETURN_IF_ERROR(sequence.read(shard, begin, stretch.tokens, readable, at));
      if (sequence.teacher) {
        sequence.read_same(at, stretch.tokens, teacher_at);
      }
    }
    sequence.stretches.push_back(stretch);
    sequence.student.close_segment(at, at + stretch.tokens);
    at += stretch.tokens;
    if (sequence.teacher) {
      sequence.teacher->close_segment(teacher_at, teacher_at + teacher_length);
      teacher_at += teacher_length;
    }
  }
  sequence.pad(at, teacher_at);
  return absl::OkStatus();
}

absl::Status Dataset::fill_concat(
    const Source& source, const SequencePlan& plan, const ConcatSequences& sequences, int64_t index,
    SequenceBuilder& sequence) const {
  int64_t count = 0;
  absl::Status status;
  for_each_cut(sequences, index, [&](const Cut& cut) {
    const Fragment fragment = fragment_of(source, plan, sequences.order[cut.entry]);
    const DocumentPlace place = find(source, fragment.document);
    const int64_t begin = place.shard->document_begin(place.document) + fragment.begin + cut.skip;
    const int64_t readable = std::min(place.shard->document_begin(place.document + 1) - begin, cut.tokens + 1);
    status.Update(sequence.read(*place.shard, begin, cut.tokens, readable, cut.at));
    count = cut.at + cut.tokens;
    // A document's last token has the next document's first token as its target.
    if (readable == cut.tokens && cut.entry + 1 < sequences.order.size()) {
      const Fragment next = fragment_of(source, plan, sequences.order[cut.entry + 1]);
      const DocumentPlace next_place = find(source, next.document);
      const int64_t token = next_place.shard->document_begin(next_place.document);
      if (next.begin == 0 && next_place.shard->has_target(token)) {
        status.Update(next_place.shard->read_tokens(token, absl::MakeSpan(&sequence.targets_S[count - 1], 1)));
      }
    }
    sequence.stretches.push_back(
        {place.shard, place.document, fragment.begin + cut.skip, cut.tokens, sequence.student.flat_begin + cut.at});
  });
  RETURN_IF_ERROR(status);
  std::fill(sequence.targets_S + count, sequence.targets_S + sequence.student.seq_len, kIgnoreIndex);
  std::fill(sequence.student.tokens_S + count, sequence.student.tokens_S + sequence.student.seq_len, kPadding);
  sequence.student.close_segment(0, sequence.student.seq_len);
  return absl::OkStatus();
}

absl::StatusOr<Batch> Dataset::batch(int64_t first, int64_t count) const {
  const int64_t seq_len = options_.seq_len;
  if (first < first_sample_ || count < 1 || first > INT64_MAX - count ||
      count > INT32_MAX / std::max(seq_len, teacher_len_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: expected first >= ", first_sample_, ", count >= 1 and fewer than 2^31 tokens, found first ", first,
        ", count ", count, ", seq_len ", seq_len,
        teacher_len_ > 0 ? absl::StrCat(", teacher_seq_len ", teacher_len_) : ""));
  }
  const int64_t teacher = teacher_of(first);
  if (const int64_t last = teacher_of(first + count - 1); last != teacher) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: expected samples of one teacher, found sample ", first, " of ", options_.teachers[teacher], " and ",
        first + count - 1, " of ", options_.teachers[last], " (groups of ", options_.teacher_group, ")"));
  }
  const auto kind = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pin_memory);
  const auto row = [](const at::Tensor& tokens, const at::Tensor& positions) {
    return TokenRow{tokens.mutable_data_ptr<int64_t>(), positions.mutable_data_ptr<int64_t>(), tokens.size(1), 0};
  };
  Batch batch;
  batch.tokens_BS = at::empty({count, seq_len}, kind);
  batch.targets_BS = at::empty({count, seq_len}, kind);
  batch.positions_BS = at::empty({count, seq_len}, kind);
  batch.packed = options_.packing == PackingMode::kPack;
  SequenceBuilder sequence{
      row(batch.tokens_BS, batch.positions_BS),
      batch.targets_BS.mutable_data_ptr<int64_t>(),
      {},
      nullptr,
      batch.stretches,
      {},
      {},
      {}};
  if (teacher_len_ > 0) {
    batch.teacher.emplace();
    batch.teacher->tokens_BT = at::empty({count, teacher_len_}, kind);
    batch.teacher->positions_BT = at::empty({count, teacher_len_}, kind);
    batch.teacher->rows_BS = at::empty({count, seq_len}, kind);
    sequence.teacher = row(batch.teacher->tokens_BT, batch.teacher->positions_BT);
    sequence.rows_S = batch.teacher->rows_BS.mutable_data_ptr<int64_t>();
  }
  for (int64_t b = 0; b < count; ++b) {
    RETURN_IF_ERROR(fill_sequence(first - origin_ + b, sequence));
    batch.valid_tokens += seq_len - std::count(sequence.targets_S, sequence.targets_S + seq_len, kIgnoreIndex);
    sequence.next_sequence();
  }
  batch.max_seqlen = sequence.student.max_seqlen;
  batch.cu_seqlens = sequence.student.segments(kind);
  if (batch.teacher) {
    batch.teacher->max_seqlen = sequence.teacher->max_seqlen;
    batch.teacher->cu_seqlens = sequence.teacher->segments(kind);
    if (alignment_of(teacher) != nullptr) {
      batch.teacher->aligned = sequence.pieces.finish(kind);
    }
  }
  batch.teacher_number = teacher;
  if (static_cast<size_t>(teacher) < teacher_rows_.size() && teacher_rows_[teacher] != nullptr) {
    ASSIGN_OR_RETURN(batch.teacher_rows_NW, teacher_rows_[teacher]->read(batch));
  }
  return batch;
}

} // namespace distill::data
