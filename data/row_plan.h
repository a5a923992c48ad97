#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

// Which documents make up each row (one sample of seq_len tokens). Plans are made once, from the documents' lengths
// alone; the epochs then permute the rows. What is packed may also be fragments of documents, wherever a "document" is
// spoken of: what an epoch has left when a run goes on with another seq_len.
namespace distill::data {

// Tokens [part * seq_len, min(length, (part + 1) * seq_len)) of a document.
struct Piece {
  uint32_t document;
  uint32_t part;
};

// Rows of whole documents. Documents longer than seq_len are cut into parts of seq_len and a rest.
struct PackedRows {
  int64_t seq_len = 0;
  std::vector<Piece> pieces;
  std::vector<uint64_t> row_begin; // [rows + 1] into pieces
  int64_t padding = 0; // tokens, over all rows

  int64_t rows() const {
    return static_cast<int64_t>(row_begin.size()) - 1;
  }
  absl::Span<const Piece> row(int64_t index) const {
    return absl::MakeConstSpan(pieces).subspan(row_begin[index], row_begin[index + 1] - row_begin[index]);
  }
};

// Best fit decreasing within windows of the (shuffled) pieces: each piece, longest first, goes to the fullest row of
// its window that still has room. O(pieces log window). With `shuffle_key` the pieces are shuffled first; without, the
// window is small, so that rows follow the order of the documents closely.
PackedRows pack_documents(absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key);

// Rows cut from one stream of documents: row r has inputs [r * seq_len, (r + 1) * seq_len) of the stream and, as
// targets, the tokens one further. The last row may be short.
struct ConcatRows {
  int64_t seq_len = 0;
  std::vector<uint32_t> order; // documents in the order of the stream
  std::vector<int64_t> begin; // [documents + 1] positions in the stream
  int64_t inputs = 0; // positions from the start that are inputs: all but the last, which is a target only

  int64_t tokens() const {
    return begin.back();
  }
  int64_t rows() const {
    return std::max<int64_t>((inputs + seq_len - 1) / seq_len, 1);
  }
};

ConcatRows concat_documents(absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key);

// Tokens [begin, end) of a document.
struct Fragment {
  uint32_t document;
  int64_t begin;
  int64_t end;

  bool operator==(const Fragment&) const = default;
};

// The rows of an epoch, or of what is left of one.
struct RowPlan {
  bool whole = true; // documents, each of them
  std::vector<Fragment> fragments; // otherwise: what the rows' "documents" are
  std::variant<PackedRows, ConcatRows> rows;

  int64_t size() const {
    return std::visit([](const auto& plan) { return plan.rows(); }, rows);
  }
};

RowPlan plan_rows(absl::Span<const int64_t> lengths, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// The same for fragments, at least one. Every token of theirs is an input once, in concatenated rows as well.
RowPlan plan_rows(std::vector<Fragment> fragments, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key);

// Which tokens are inputs of the rows that are not `read` ([rows]), as fragments in the order of the documents, as long
// as they can be. `lengths`: of the documents.
std::vector<Fragment> unread_fragments(
    const RowPlan& plan, absl::Span<const int64_t> lengths, const std::vector<bool>& read);

} // namespace distill::data
