#include "data/sequence_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "data/random.h"

namespace distill::data {

namespace {

// A window has at least this many pieces and sequences. Padding comes mostly from the last sequences of a window.
struct WindowSize {
  size_t pieces;
  int64_t sequences;
};
constexpr WindowSize kShuffledWindow = {65536, 1024};
constexpr WindowSize kOrderedWindow = {1024, 128};

// A set of integers in [0, size): a 64-way trie of bits, so that insert, erase and "smallest element >= x" visit few
// levels.
class CapacitySet {
 public:
  explicit CapacitySet(size_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }

  void insert(size_t value) {
    for (auto& level : levels_) {
      level[value / 64] |= uint64_t{1} << (value % 64);
      value /= 64;
    }
  }

  void erase(size_t value) {
    for (auto& level : levels_) {
      level[value / 64] &= ~(uint64_t{1} << (value % 64));
      if (level[value / 64] != 0) {
        return;
      }
      value /= 64;
    }
  }

  // -1: none.
  int64_t at_least(size_t value) const {
    for (size_t depth = 0; depth < levels_.size(); ++depth) {
      const size_t word = value / 64;
      if (word >= levels_[depth].size()) {
        return -1;
      }
      const uint64_t rest = levels_[depth][word] >> (value % 64);
      if (rest != 0) {
        value += static_cast<size_t>(std::countr_zero(rest));
        for (; depth > 0; --depth) {
          value = value * 64 + static_cast<size_t>(std::countr_zero(levels_[depth - 1][value]));
        }
        return static_cast<int64_t>(value);
      }
      value = word + 1;
    }
    return -1;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// The sequences of one window that are not full, by the room that is left in them. Memory is proportional to seq_len,
// which WindowPacker caps at the number of tokens.
class OpenSequences {
 public:
  explicit OpenSequences(int64_t seq_len) : seq_len_(seq_len), rooms_(seq_len + 1), first_with_room_(seq_len + 1, -1) {}

  // The sequence that a piece of this length goes to; a new one when it fits in none.
  int32_t place(int64_t length) {
    int64_t room = rooms_.at_least(static_cast<size_t>(length));
    int32_t sequence;
    if (room < 0) {
      sequence = static_cast<int32_t>(next_.size());
      next_.push_back(-1);
      room = seq_len_;
    } else {
      sequence = first_with_room_[room];
      first_with_room_[room] = next_[sequence];
      if (next_[sequence] < 0) {
        rooms_.erase(static_cast<size_t>(room));
      }
    }
    const int64_t left = room - length;
    if (left > 0) {
      next_[sequence] = first_with_room_[left];
      first_with_room_[left] = sequence;
      rooms_.insert(static_cast<size_t>(left));
    }
    return sequence;
  }

  size_t count() const {
    return next_.size();
  }

  void clear() {
    for (int64_t room = rooms_.at_least(0); room >= 0; room = rooms_.at_least(static_cast<size_t>(room))) {
      rooms_.erase(static_cast<size_t>(room));
      first_with_room_[room] = -1;
    }
    next_.clear();
  }

 private:
  int64_t seq_len_;
  CapacitySet rooms_;
  std::vector<int32_t> first_with_room_; // [seq_len + 1] head of a list of sequences
  std::vector<int32_t> next_; // [sequences]
};

std::vector<Piece> cut(absl::Span<const int64_t> lengths, int64_t seq_len) {
  size_t count = 0;
  for (const int64_t length : lengths) {
    const int64_t parts = (length + seq_len - 1) / seq_len;
    TORCH_CHECK(
        parts <= UINT32_MAX, "a document has at most 2^32 - 1 parts, found one of ", length, " tokens with seq_len ",
        seq_len);
    count += static_cast<size_t>(parts);
  }
  std::vector<Piece> pieces;
  pieces.reserve(count);
  for (size_t document = 0; document < lengths.size(); ++document) {
    const int64_t parts = (lengths[document] + seq_len - 1) / seq_len;
    for (int64_t part = 0; part < parts; ++part) {
      pieces.push_back({static_cast<uint32_t>(document), static_cast<uint32_t>(part)});
    }
  }
  return pieces;
}

// Packs one window in place: reorders its pieces sequence by sequence (sequences by their first piece, pieces in their
// old order) and appends the sequences' ends.
class WindowPacker {
 public:
  WindowPacker(absl::Span<const int64_t> lengths, int64_t seq_len)
      : lengths_(lengths), seq_len_(seq_len), open_(std::min(seq_len, total(lengths))) {}

  void pack(absl::Span<Piece> window, uint64_t window_begin, std::vector<uint64_t>& sequence_begin) {
    by_length_.resize(window.size());
    for (size_t i = 0; i < window.size(); ++i) {
      by_length_[i] = static_cast<uint64_t>(seq_len_ - piece_length(window[i])) << 32 | i;
    }
    std::sort(by_length_.begin(), by_length_.end());
    open_.clear();
    sequence_of_.resize(window.size());
    for (const uint64_t entry : by_length_) {
      sequence_of_[static_cast<uint32_t>(entry)] = open_.place(seq_len_ - static_cast<int64_t>(entry >> 32));
    }
    // Numbers the sequences in the order of their first pieces, then sorts the pieces by counting.
    renumbered_.assign(open_.count(), -1);
    ends_.assign(open_.count(), 0);
    int32_t sequences = 0;
    for (int32_t& sequence : sequence_of_) {
      if (renumbered_[sequence] < 0) {
        renumbered_[sequence] = sequences++;
      }
      sequence = renumbered_[sequence];
      ++ends_[sequence];
    }
    std::exclusive_scan(ends_.begin(), ends_.end(), ends_.begin(), size_t{0});
    sorted_.resize(window.size());
    for (size_t i = 0; i < window.size(); ++i) {
      sorted_[ends_[sequence_of_[i]]++] = window[i];
    }
    std::copy(sorted_.begin(), sorted_.end(), window.begin());
    for (const size_t end : ends_) {
      sequence_begin.push_back(window_begin + end);
    }
  }

  static int64_t total(absl::Span<const int64_t> lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }

  int64_t piece_length(const Piece& piece) const {
    return std::min(lengths_[piece.document] - piece.part * seq_len_, seq_len_);
  }

 private:
  absl::Span<const int64_t> lengths_;
  int64_t seq_len_;
  OpenSequences open_;
  std::vector<uint64_t>
      by_length_; // seq_len - length in the high half, the index in the low half: sorts the longest first
  std::vector<int32_t> sequence_of_;
  std::vector<int32_t> renumbered_;
  std::vector<size_t> ends_;
  std::vector<Piece> sorted_;
};

} // namespace

PackedSequences pack_documents(
    absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key) {
  TORCH_CHECK(seq_len >= 1, "seq_len: expected at least 1, found ", seq_len);
  TORCH_CHECK(lengths.size() <= UINT32_MAX, "a data set has at most 2^32 - 1 documents, found ", lengths.size());
  PackedSequences plan;
  plan.seq_len = seq_len;
  plan.pieces = cut(lengths, seq_len);
  plan.sequence_begin = {0};
  if (shuffle_key) {
    shuffle(plan.pieces, *shuffle_key);
  }
  const WindowSize least = shuffle_key ? kShuffledWindow : kOrderedWindow;
  WindowPacker packer(lengths, seq_len);
  size_t begin = 0;
  int64_t tokens = 0;
  for (size_t end = 1; end <= plan.pieces.size(); ++end) {
    tokens += packer.piece_length(plan.pieces[end - 1]);
    const bool complete = end - begin >= least.pieces && tokens >= least.sequences * seq_len;
    if (complete || end == plan.pieces.size()) {
      packer.pack(absl::MakeSpan(plan.pieces).subspan(begin, end - begin), begin, plan.sequence_begin);
      begin = end;
      tokens = 0;
    }
  }
  plan.padding = plan.count() * seq_len - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return plan;
}

ConcatSequences concat_documents(
    absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key) {
  TORCH_CHECK(seq_len >= 1, "seq_len: expected at least 1, found ", seq_len);
  TORCH_CHECK(lengths.size() <= UINT32_MAX, "a data set has at most 2^32 - 1 documents, found ", lengths.size());
  ConcatSequences plan;
  plan.seq_len = seq_len;
  plan.order.resize(lengths.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  if (shuffle_key) {
    shuffle(plan.order, *shuffle_key);
  }
  plan.begin.reserve(lengths.size() + 1);
  plan.begin.push_back(0);
  for (const uint32_t document : plan.order) {
    plan.begin.push_back(plan.begin.back() + lengths[document]);
  }
  plan.inputs = plan.tokens() - 1;
  return plan;
}

} // namespace distill::data
