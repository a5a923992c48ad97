#include <algorithm>

#include "data/sequence_plan.h"

// This file plans sequences of fragments of documents, and finds the fragments of which a plan's unread sequences
// consist.
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

// Appends tokens [begin, end) of the plan's document `index` to `out`.
void add(
    const SequencePlan& plan, absl::Span<const int64_t> lengths, uint32_t index, int64_t begin, int64_t end,
    std::vector<Fragment>& out) {
  const Fragment of = plan.whole ? Fragment{index, 0, lengths[index]} : plan.fragments[index];
  out.push_back({of.document, of.begin + begin, of.begin + end});
}

void add_sequence(
    const SequencePlan& plan, const PackedSequences& sequences, absl::Span<const int64_t> lengths, int64_t sequence,
    std::vector<Fragment>& out) {
  for (const Piece& piece : sequences.sequence(sequence)) {
    const int64_t length = plan.whole ? lengths[piece.document]
                                      : plan.fragments[piece.document].end - plan.fragments[piece.document].begin;
    if (piece.both_texts()) {
      add(plan, lengths, piece.document, 0, length, out);
      continue;
    }
    const int64_t begin = piece.part * sequences.part_len;
    add(plan, lengths, piece.document, begin, std::min(length, begin + sequences.part_len), out);
  }
}

void add_sequence(
    const SequencePlan& plan, const ConcatSequences& sequences, absl::Span<const int64_t> lengths, int64_t sequence,
    std::vector<Fragment>& out) {
  const int64_t end = std::min((sequence + 1) * sequences.seq_len, sequences.inputs);
  int64_t at = sequence * sequences.seq_len;
  auto place = std::upper_bound(sequences.begin.begin(), sequences.begin.end(), at) - sequences.begin.begin() - 1;
  for (; at < end; ++place) {
    const int64_t stop = std::min(end, sequences.begin[place + 1]);
    add(plan, lengths, sequences.order[place], at - sequences.begin[place], stop - sequences.begin[place], out);
    at = stop;
  }
}

} // namespace

SequencePlan plan_sequences(
    absl::Span<const int64_t> lengths, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key) {
  SequencePlan plan;
  if (pack) {
    plan.sequences = pack_documents(lengths, seq_len, shuffle_key);
  } else {
    plan.sequences = concat_documents(lengths, seq_len, shuffle_key);
  }
  return plan;
}

SequencePlan plan_sequences(
    absl::Span<const DocumentSize> sizes, int64_t seq_len, int64_t teacher_seq_len, std::optional<uint64_t> shuffle_key,
    std::vector<Fragment> fragments) {
  SequencePlan plan;
  plan.sequences = pack_documents(sizes, seq_len, teacher_seq_len, shuffle_key);
  plan.whole = fragments.empty();
  plan.fragments = std::move(fragments);
  return plan;
}

SequencePlan plan_sequences(
    std::vector<Fragment> fragments, int64_t seq_len, bool pack, std::optional<uint64_t> shuffle_key) {
  SequencePlan plan = plan_sequences(lengths_of(fragments), seq_len, pack, shuffle_key);
  if (auto* concat = std::get_if<ConcatSequences>(&plan.sequences)) {
    concat->inputs = concat->tokens();
  }
  plan.whole = false;
  plan.fragments = std::move(fragments);
  return plan;
}

std::vector<Fragment> unread_fragments(
    const SequencePlan& plan, absl::Span<const int64_t> lengths, const std::vector<bool>& read) {
  std::vector<Fragment> pieces;
  for (int64_t sequence = 0; sequence < plan.size(); ++sequence) {
    if (!read[static_cast<size_t>(sequence)]) {
      std::visit(
          [&](const auto& sequences) { add_sequence(plan, sequences, lengths, sequence, pieces); }, plan.sequences);
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
