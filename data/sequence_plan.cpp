#include "data/sequence_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <queue>

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

  // Returns -1 if there is none.
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

// Tokens of the student's and the teacher's sequence: what a piece takes, or what a sequence has room for. Without a
// teacher stream `teacher` is 0 throughout.
struct Tokens {
  int64_t student;
  int64_t teacher;
};

// The sequences of one window that are not full, by the room that is left in them. With a teacher stream the size of a
// piece is the larger, and the room of a sequence the smaller, of its two shares, in units of 1 / resolution: a piece
// whose size is at most the room fits in both. Memory is proportional to the resolution.
class OpenSequences {
 public:
  explicit OpenSequences(const Tokens& capacity)
      : capacity_(capacity),
        resolution_(std::max(capacity.student, capacity.teacher)),
        rooms_(resolution_ + 1),
        first_with_room_(resolution_ + 1, -1) {}

  int64_t resolution() const {
    return resolution_;
  }
  // The size of a piece. Without a teacher stream that is its number of tokens.
  int64_t size(const Tokens& piece) const {
    if (capacity_.teacher == 0) {
      return piece.student;
    }
    const auto share = [this](int64_t tokens, int64_t capacity) {
      return (tokens * resolution_ + capacity - 1) / capacity;
    };
    return std::max(share(piece.student, capacity_.student), share(piece.teacher, capacity_.teacher));
  }

  // The fullest sequence in which a piece fits, a new one where it fits in none.
  int32_t place(int64_t size, const Tokens& piece) {
    const int64_t found = rooms_.at_least(static_cast<size_t>(size));
    int32_t sequence;
    if (found < 0) {
      sequence = static_cast<int32_t>(next_.size());
      next_.push_back(-1);
      room_.push_back(capacity_);
    } else {
      sequence = first_with_room_[found];
      first_with_room_[found] = next_[sequence];
      if (next_[sequence] < 0) {
        rooms_.erase(static_cast<size_t>(found));
      }
    }
    room_[sequence].student -= piece.student;
    room_[sequence].teacher -= piece.teacher;
    if (const int64_t left = room(room_[sequence]); left > 0) {
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
    room_.clear();
  }

 private:
  int64_t room(const Tokens& left) const {
    return capacity_.teacher == 0
        ? left.student
        : std::min(left.student * resolution_ / capacity_.student, left.teacher * resolution_ / capacity_.teacher);
  }

  Tokens capacity_;
  int64_t resolution_;
  CapacitySet rooms_;
  std::vector<int32_t> first_with_room_; // [resolution + 1] head of a list of sequences
  std::vector<int32_t> next_; // [sequences]
  std::vector<Tokens> room_; // [sequences]
};

// Packs one window in place: reorders its pieces sequence by sequence (sequences by their first piece, pieces in their
// old order) and appends the sequences' ends. `tokens_of`: Tokens of a Piece. `capacity`: of a sequence.
template <typename TokensOf>
class WindowPacker {
 public:
  WindowPacker(TokensOf tokens_of, const Tokens& capacity)
      : tokens_of_(tokens_of), with_teacher_(capacity.teacher > 0), open_(capacity) {}

  int64_t resolution() const {
    return open_.resolution();
  }
  int64_t size(const Piece& piece) const {
    return open_.size(tokens_of_(piece));
  }

  void pack(absl::Span<Piece> window, uint64_t window_begin, std::vector<uint64_t>& sequence_begin) {
    by_size_.resize(window.size());
    for (size_t i = 0; i < window.size(); ++i) {
      by_size_[i] = static_cast<uint64_t>(resolution() - size(window[i])) << 32 | i;
    }
    std::sort(by_size_.begin(), by_size_.end());
    open_.clear();
    sequence_of_.resize(window.size());
    for (const uint64_t entry : by_size_) {
      const auto i = static_cast<uint32_t>(entry);
      const int64_t size = resolution() - static_cast<int64_t>(entry >> 32);
      sequence_of_[i] = open_.place(size, with_teacher_ ? tokens_of_(window[i]) : Tokens{size, 0});
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

 private:
  TokensOf tokens_of_;
  bool with_teacher_;
  OpenSequences open_;
  std::vector<uint64_t>
      by_size_; // resolution - size in the high half, the index in the low half: sorts the longest first
  std::vector<int32_t> sequence_of_;
  std::vector<int32_t> renumbered_;
  std::vector<size_t> ends_;
  std::vector<Piece> sorted_;
};

// Packs window by window. `capacity`: of a sequence; `total`: of all pieces.
template <typename TokensOf>
void pack_windows(
    PackedSequences& plan, const Tokens& capacity, const Tokens& total, std::optional<uint64_t> shuffle_key,
    TokensOf tokens_of) {
  plan.sequence_begin = {0};
  if (shuffle_key) {
    shuffle(plan.pieces, *shuffle_key);
  }
  const WindowSize least = shuffle_key ? kShuffledWindow : kOrderedWindow;
  // No sequence needs more room than all pieces take, which keeps the packer's memory small. With room for the sum of
  // both streams in each, every piece fits together with all others.
  const int64_t most = total.student + total.teacher;
  WindowPacker<TokensOf> packer(tokens_of, {std::min(capacity.student, most), std::min(capacity.teacher, most)});
  size_t begin = 0;
  int64_t filled = 0;
  for (size_t end = 1; end <= plan.pieces.size(); ++end) {
    filled += packer.size(plan.pieces[end - 1]);
    const bool complete = end - begin >= least.pieces && filled >= least.sequences * packer.resolution();
    if (complete || end == plan.pieces.size()) {
      packer.pack(absl::MakeSpan(plan.pieces).subspan(begin, end - begin), begin, plan.sequence_begin);
      begin = end;
      filled = 0;
    }
  }
}

int64_t parts_of(int64_t length, int64_t part_len) {
  const int64_t parts = (length + part_len - 1) / part_len;
  TORCH_CHECK(
      parts < Piece::kBothTexts, "a document has fewer than 2^32 - 1 parts, found one of ", length,
      " tokens in parts of ", part_len);
  return parts;
}

void check_sizes(int64_t seq_len, size_t documents) {
  TORCH_CHECK(seq_len >= 1, "seq_len: expected at least 1, found ", seq_len);
  TORCH_CHECK(documents <= UINT32_MAX, "a data set has at most 2^32 - 1 documents, found ", documents);
}

// The pieces of all documents. `parts(i)`: how many parts document i has; -1: it is one piece with both texts.
template <typename Parts>
std::vector<Piece> cut(size_t documents, const Parts& parts) {
  size_t count = 0;
  for (size_t i = 0; i < documents; ++i) {
    count += static_cast<size_t>(std::abs(parts(i)));
  }
  std::vector<Piece> pieces;
  pieces.reserve(count);
  for (size_t i = 0; i < documents; ++i) {
    const int64_t number = parts(i);
    if (number < 0) {
      pieces.push_back({static_cast<uint32_t>(i), Piece::kBothTexts});
    }
    for (int64_t part = 0; part < number; ++part) {
      pieces.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(part)});
    }
  }
  return pieces;
}

} // namespace

PackedSequences pack_documents(
    absl::Span<const int64_t> lengths, int64_t seq_len, std::optional<uint64_t> shuffle_key) {
  check_sizes(seq_len, lengths.size());
  PackedSequences plan;
  plan.seq_len = plan.part_len = seq_len;
  plan.pieces = cut(lengths.size(), [&](size_t i) { return parts_of(lengths[i], seq_len); });
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  pack_windows(plan, {seq_len, 0}, {total, 0}, shuffle_key, [lengths, seq_len](const Piece& piece) {
    return Tokens{std::min(lengths[piece.document] - piece.part * seq_len, seq_len), 0};
  });
  plan.padding = plan.count() * seq_len - total;
  return plan;
}

void spread(PackedSequences& plan, int64_t count) {
  const int64_t before = plan.count(), wanted = std::min(count, static_cast<int64_t>(plan.pieces.size()));
  if (before >= wanted) {
    return;
  }
  struct Range {
    uint64_t begin, end;
    bool operator<(const Range& other) const { // the largest first, and of equal ones the earliest
      const uint64_t own = end - begin, others = other.end - other.begin;
      return own != others ? own < others : begin > other.begin;
    }
  };
  std::priority_queue<Range> ranges;
  for (int64_t i = 0; i < before; ++i) {
    ranges.push({plan.sequence_begin[i], plan.sequence_begin[i + 1]});
  }
  while (static_cast<int64_t>(ranges.size()) < wanted) {
    const Range range = ranges.top();
    ranges.pop();
    const uint64_t middle = range.begin + (range.end - range.begin) / 2;
    ranges.push({range.begin, middle});
    ranges.push({middle, range.end});
  }
  plan.sequence_begin = {plan.pieces.size()};
  for (; !ranges.empty(); ranges.pop()) {
    plan.sequence_begin.push_back(ranges.top().begin);
  }
  std::sort(plan.sequence_begin.begin(), plan.sequence_begin.end());
  plan.padding += (plan.count() - before) * plan.seq_len;
  plan.teacher_padding += (plan.count() - before) * plan.teacher_seq_len;
}

PackedSequences pack_documents(
    absl::Span<const DocumentSize> sizes, int64_t seq_len, int64_t teacher_seq_len,
    std::optional<uint64_t> shuffle_key) {
  check_sizes(std::min(seq_len, teacher_seq_len), sizes.size());
  PackedSequences plan;
  plan.seq_len = seq_len;
  plan.teacher_seq_len = teacher_seq_len;
  const int64_t part_len = plan.part_len = std::min(seq_len, teacher_seq_len);
  Tokens total{0, 0};
  for (const DocumentSize& size : sizes) {
    const bool same = size.teacher_tokens == DocumentSize::kSameText;
    TORCH_CHECK(
        same || (size.tokens <= seq_len && size.teacher_tokens <= teacher_seq_len), "a document of ", size.tokens,
        " tokens, of which the teacher reads ", size.teacher_tokens, ", in sequences of ", seq_len, " and ",
        teacher_seq_len);
    total.student += size.tokens;
    total.teacher += same ? size.tokens : size.teacher_tokens;
  }
  plan.pieces = cut(sizes.size(), [&](size_t i) {
    return sizes[i].teacher_tokens == DocumentSize::kSameText ? parts_of(sizes[i].tokens, part_len)
                                                              : (sizes[i].tokens > 0 ? -1 : 0);
  });
  pack_windows(plan, {seq_len, teacher_seq_len}, total, shuffle_key, [sizes, part_len](const Piece& piece) {
    const DocumentSize& size = sizes[piece.document];
    if (piece.both_texts()) {
      return Tokens{size.tokens, size.teacher_tokens};
    }
    const int64_t part = std::min(size.tokens - piece.part * part_len, part_len);
    return Tokens{part, part};
  });
  plan.padding = plan.count() * seq_len - total.student;
  plan.teacher_padding = plan.count() * teacher_seq_len - total.teacher;
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
