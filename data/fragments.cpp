#include <algorithm>

#include "data/row_plan.h"

// Rows of fragments of documents, and the fragments that rows leave.
namespace distill::data {

namespace {

std::vector<int64_t> lengths_of(const std::vector<Fragment>& fragments) {
  std::vector<int64_t> lengths;
  lengths.reserve(fragments.size());
  for (const Fragment& fragment : fragments) {
    lengths.push_back(fragment.end - fragment.begin);
  }
  return lengths;
}

// Adds tokens [begin, end) of the plan's document `index`.
void add(
    const RowPlan& plan, absl::Span<const int64_t> lengths, uint32_t index, int64_t begin, int64_t end,
    std::vector<Fragment>& out) {
  const Fragment of = plan.whole ? Fragment{index, 0, lengths[index]} : plan.fragments[index];
  out.push_back({of.document, of.begin + begin, of.begin + end});
}

void add_row(
    const RowPlan& plan, const PackedRows& rows, absl::Span<const int64_t> lengths, int64_t row,
    std::vector<Fragment>& out) {
  for (const Piece& piece : rows.row(row)) {
    const int64_t length = plan.whole ? lengths[piece.document]
                                      : plan.fragments[piece.document].end - plan.fragments[piece.document].begin;
    const int64_t begin = piece.part * rows.seq_len;
    add(plan, lengths, piece.document, begin, std::min(length, begin + rows.seq_len), out);
  }
}

void add_row(
    const RowPlan& plan, const ConcatRows& rows, absl::Span<const int64_t> lengths, int64_t row,
    std::vector<Fragment>& out) {
  const int64_t end = std::min((row + 1) * rows.seq_len, rows.inputs);
  int64_t at = row * rows.seq_len;
  auto place = std::upper_bound(rows.begin.begin(), rows.begin.end(), at) - rows.begin.begin() - 1;
  for (; at < end; ++place) {
    const int64_t stop = std::min(end, rows.begin[place + 1]);
    add(plan, lengths, rows.order[place], at - rows.begin[place], stop - rows.begin[place], out);
    at = stop;
  }
}

} // namespace

RowPlan plan_rows(absl::Span<const int64_t> lengths, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key) {
  RowPlan plan;
  if (pack) {
    plan.rows = pack_documents(lengths, seq_len, shuffle_key);
  } else {
    plan.rows = concat_documents(lengths, seq_len, shuffle_key);
  }
  return plan;
}

RowPlan plan_rows(std::vector<Fragment> fragments, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key) {
  RowPlan plan = plan_rows(lengths_of(fragments), seq_len, pack, shuffle_key);
  if (auto* concat = std::get_if<ConcatRows>(&plan.rows)) {
    concat->inputs = concat->tokens();
  }
  plan.whole = false;
  plan.fragments = std::move(fragments);
  return plan;
}

std::vector<Fragment> unread_fragments(
    const RowPlan& plan, absl::Span<const int64_t> lengths, const std::vector<bool>& read) {
  std::vector<Fragment> pieces;
  for (int64_t row = 0; row < plan.size(); ++row) {
    if (!read[static_cast<size_t>(row)]) {
      std::visit([&](const auto& rows) { add_row(plan, rows, lengths, row, pieces); }, plan.rows);
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Fragment& a, const Fragment& b) {
    return std::pair(a.document, a.begin) < std::pair(b.document, b.begin);
  });
  std::vector<Fragment> fragments;
  for (const Fragment& piece : pieces) {
    if (!fragments.empty() && fragments.back().document == piece.document && fragments.back().end == piece.begin) {
      fragments.back().end = piece.end;
    } else {
      fragments.push_back(piece);
    }
  }
  return fragments;
}

} // namespace distill::data
