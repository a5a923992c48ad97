#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

// Which documents make up each sequence (one sample of seq_len tokens). Plans are made once, from the documents'
// lengths alone; the epochs then permute the sequences. What is packed may also be fragments of documents, wherever a
// "document" is spoken of: what an epoch has left when a run goes on with another seq_len.
namespace distill::data {

// Tokens [part * seq_len, min(length, (part + 1) * seq_len)) of a document.
struct Piece {
  uint32_t document;
  uint32_t part;
};

// Sequences of whole documents. Documents longer than seq_len are cut into parts of seq_len and a rest.
struct PackedSequences {
  int64_t seq_len = 0;
  std::vector<Piece> pieces;
  std::vector<uint64_t> sequence_begin; // [sequences + 1] into pieces
  int64_t padding = 0; // tokens, over all sequences

  int64_t sequences() const {
    return static_cast<int64_t>(sequence_begin.size()) - 1;
  }
  absl::Span<const Piece> sequence(int64_t index) const {
    return absl::MakeConstSpan(pieces).subspan(
        sequence_begin[index], sequence_begin[index + 1] - sequence_begin[index]);
  }
};

// Best fit decreasing within windows of the (shuffled) pieces: each piece, longest first, goes to the fullest sequence
// of its window that still has room. O(pieces log window). With `shuffle_key` the pieces are shuffled first; without,
// the window is small, so that sequences follow the order of the documents closely.
PackedSequences pack_documents(absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key);

// Sequences cut from one stream of documents: sequence r has inputs [r * seq_len, (r + 1) * seq_len) of the stream and,
// as targets, the tokens one further. The last sequence may be short.
struct ConcatSequences {
  int64_t seq_len = 0;
  std::vector<uint32_t> order; // documents in the order of the stream
  std::vector<int64_t> begin; // [documents + 1] positions in the stream
  int64_t inputs = 0; // positions from the start that are inputs: all but the last, which is a target only

  int64_t tokens() const {
    return begin.back();
  }
  int64_t sequences() const {
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

// The sequences of an epoch, or of what is left of one.
struct SequencePlan {
  bool whole = true; // documents, each of them
  std::vector<Fragment> fragments; // otherwise: what the sequences' "documents" are
  std::variant<PackedSequences, ConcatSequences> sequences;

  int64_t size() const {
    return std::visit([](const auto& plan) { return plan.sequences(); }, sequences);
  }
};

SequencePlan plan_sequences(
    absl::Span<const int64_t> lengths, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// The same for fragments, at least one. Every token of theirs is an input once, in concatenated sequences as well.
SequencePlan plan_sequences(
    std::vector<Fragment> fragments, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// Which tokens are inputs of the sequences that are not `read` ([sequences]), as fragments in the order of the
// documents, as long as they can be. `lengths`: of the documents.
std::vector<Fragment> unread_fragments(
    const SequencePlan& plan, absl::Span<const int64_t> lengths, const std::vector<bool>& read);

} // namespace distill::data
