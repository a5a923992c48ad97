#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

// Which documents make up each sequence (one sample of seq_len tokens). A plan is made once, from the documents'
// lengths alone; each epoch then permutes its sequences. When a run is resumed with another seq_len, the unread part of
// its epoch is planned anew: the "documents" of that plan are fragments of documents.
namespace distill::data {

// Tokens [part * part_len, min(length, (part + 1) * part_len)) of a document.
struct Piece {
  uint32_t document;
  uint32_t part;

  // The value of `part` for a document that is read with its teacher's text, as much as fit_texts (teacher_text.h)
  // fits.
  static constexpr uint32_t kBothTexts = UINT32_MAX;
  bool both_texts() const {
    return part == kBothTexts;
  }
};

// Sequences of whole documents. Documents longer than part_len are cut into parts of part_len and a shorter last part.
struct PackedSequences {
  int64_t seq_len = 0;
  int64_t teacher_seq_len = 0; // 0: no teacher stream
  int64_t part_len = 0; // seq_len; with a teacher stream the smaller of seq_len and teacher_seq_len
  std::vector<Piece> pieces;
  std::vector<uint64_t> sequence_begin; // [sequences + 1] into pieces
  int64_t padding = 0; // tokens, sum over all sequences
  int64_t teacher_padding = 0; // tokens of padding in all of the teacher's sequences; 0 without a teacher stream

  int64_t count() const {
    return static_cast<int64_t>(sequence_begin.size()) - 1;
  }
  absl::Span<const Piece> sequence(int64_t index) const {
    return absl::MakeConstSpan(pieces).subspan(
        sequence_begin[index], sequence_begin[index + 1] - sequence_begin[index]);
  }
};

// Best fit decreasing within windows of the (shuffled) pieces: each piece, longest first, goes to the fullest sequence
// of its window that still has room. O(pieces log window). With `shuffle_key` the pieces are shuffled first; without
// it the windows are small, so that the sequences follow the order of the documents closely.
PackedSequences pack_documents(absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key);

// Moves pieces to new sequences until there are `count` of them, or as many as pieces: each time half of those of the
// sequence that has the most.
void spread(PackedSequences& plan, int64_t count);

// The tokens of a document that student and teacher read.
struct DocumentSize {
  static constexpr int64_t kSameText = -1;
  int64_t tokens = 0; // 0: the document is left out, since nothing of it fits with the teacher's own text
  int64_t teacher_tokens = kSameText; // kSameText: the teacher reads the document's tokens
};

// Packs documents of which some have a text of the teacher's own: the tokens that the student reads fit into seq_len,
// and those that the teacher reads into teacher_seq_len. Documents with a text of the teacher's own are one piece, both
// of whose sizes must fit. A piece's length is then the larger of its shares of the two sequences.
PackedSequences pack_documents(
    absl::Span<const DocumentSize> sizes, int64_t seq_len, int64_t teacher_seq_len,
    std::optional<uint64_t> shuffle_key);

// Sequences cut from one stream of concatenated documents: the inputs of sequence i are tokens [i * seq_len,
// (i + 1) * seq_len) of the stream, its targets are the tokens one position later. The last sequence may be short.
struct ConcatSequences {
  int64_t seq_len = 0;
  std::vector<uint32_t> order; // documents in the order of the stream
  std::vector<int64_t> begin; // [documents + 1] positions in the stream
  int64_t inputs = 0; // the first `inputs` tokens are inputs; the last token of the stream is only a target

  int64_t tokens() const {
    return begin.back();
  }
  int64_t count() const {
    return std::max<int64_t>((inputs + seq_len - 1) / seq_len, 1);
  }
};

ConcatSequences concat_documents(
    absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key);

// Tokens [begin, end) of a document.
struct Fragment {
  uint32_t document;
  int64_t begin;
  int64_t end;

  bool operator==(const Fragment&) const = default;
};

// The sequences of a whole epoch, or of the unread part of one.
struct SequencePlan {
  bool whole = true; // true: the plan's documents are those of the source
  std::vector<Fragment> fragments; // not whole: the fragments that the plan calls documents
  std::variant<PackedSequences, ConcatSequences> sequences;

  int64_t size() const {
    return std::visit([](const auto& plan) { return plan.count(); }, sequences);
  }
};

SequencePlan plan_sequences(
    absl::Span<const int64_t> lengths, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// Plans documents of which some have a text of the teacher's own. `fragments`: the fragments to which `sizes` belong;
// empty: `sizes` are those of the source's documents.
SequencePlan plan_sequences(
    absl::Span<const DocumentSize> sizes, int64_t seq_len, int64_t teacher_seq_len, std::optional<uint64_t> shuffle_key,
    std::vector<Fragment> fragments = {});

// Plans at least one fragment. Every token of the fragments is an input once, also with concatenation.
SequencePlan plan_sequences(
    std::vector<Fragment> fragments, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// The inputs of all sequences that have not been read, as the fewest possible fragments in the order of the documents.
// `lengths`: of the source's documents; `read` [sequences]. A document with a text of the teacher's own is always one
// fragment, all of it.
std::vector<Fragment> unread_fragments(
    const SequencePlan& plan, absl::Span<const int64_t> lengths, const std::vector<bool>& read);

} // namespace distill::data
