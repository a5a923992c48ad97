#include "losses/head/chunk_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "losses/head/chunk_cost.h"

namespace distill::losses {

namespace {

constexpr double kAsFast = 1.001; // times differ by more than that from run to run
constexpr int64_t kStep = 64; // every measured number of rows is a multiple of it
constexpr int64_t kGroupStep = 16;
constexpr int64_t kMostGroups = 32; // with more of them in a call it does not matter how full the last one is
// The last chunk of a group may have a number of tokens that was not measured, up to this: larger ones may be slow.
constexpr int64_t kLargestRest = 256;

struct Size {
  int64_t rows;
  double cost;
};

// Returns the measured sizes from `least` to `most` tokens.
std::vector<Size> measured_sizes(int64_t least, int64_t most) {
  std::vector<Size> sizes;
  for (const MeasuredRows& measured : measured_logits_products()) {
    if (measured.rows >= least && measured.rows <= most) {
      sizes.push_back({measured.rows, chunk_cost(measured.rows)});
    }
  }
  return sizes;
}

// A GroupSearch finds groups whose chunks have measured sizes, with a rest as the last one.
class GroupSearch {
 public:
  GroupSearch(const HeadShape& shape, int64_t min_chunk_size, int64_t longest, int64_t cap_bytes)
      : sizes_(measured_sizes(min_chunk_size, std::min(longest, kMaxAutomaticRows))),
        terms_(scratch_terms(shape, longest)),
        cap_bytes_(cap_bytes) {}

  // Returns the fastest chunks of a group of `tokens`, at most kMaxAutomaticRows; empty where none fit.
  // Calls are fastest where the number of tokens grows from call to call.
  std::vector<int64_t> fastest_group(int64_t tokens) {
    find_chunks((tokens + kStep - 1) / kStep);
    int64_t rest = tokens % kStep == 0 ? 0 : -1; // -1: none
    double least = rest == 0 ? found_[tokens / kStep].cost : kInfinity;
    for (int64_t k = (tokens - 1) / kStep; k > 0 && tokens - k * kStep <= kLargestRest; --k) {
      const int64_t left = tokens - k * kStep;
      const double cost = found_[k].cost + chunk_cost(left);
      if (cost < least && left <= std::min(most_rows(k), found_[k].smallest)) {
        rest = left;
        least = cost;
      }
    }
    if (least == kInfinity) {
      return {};
    }
    std::vector<int64_t> chunks;
    for (int64_t k = (tokens - rest) / kStep; k > 0; k -= found_[k].last / kStep) {
      chunks.push_back(found_[k].last);
    }
    // If the chunks fit in some order, they fit with the largest first.
    std::sort(chunks.begin(), chunks.end(), std::greater<>());
    if (rest > 0) {
      chunks.push_back(rest);
    }
    return chunks;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // The fastest chunks of measured sizes for one number of tokens.
  struct Found {
    double cost = kInfinity;
    int64_t last = 0;
    int64_t smallest = 0;
  };

  // Returns the most tokens that a chunk may have which comes after k steps of others.
  int64_t most_rows(int64_t k) const {
    return (room_ - terms_.gradient_row * k * kStep) / (terms_.gradient_row + terms_.logits_row);
  }

  // Finds the fastest chunks for each number of steps up to `steps`, for a group of that length.
  void find_chunks(int64_t steps) {
    if (std::exchange(steps_, steps) == steps) {
      return;
    }
    room_ = cap_bytes_ - terms_.fixed - terms_.group_row * steps * kStep;
    std::fill_n(found_.begin(), steps + 1, Found{});
    found_[0] = {.cost = 0, .smallest = kMaxAutomaticRows};
    for (int64_t k = 0; k < steps; ++k) {
      const Found& here = found_[k];
      const int64_t limit = here.cost < kInfinity ? std::min(most_rows(k), (steps - k) * kStep) : 0;
      for (size_t s = 0; s < sizes_.size() && sizes_[s].rows <= limit; ++s) {
        const Size& size = sizes_[s];
        Found& next = found_[k + size.rows / kStep];
        if (here.cost + size.cost < next.cost) {
          next = {.cost = here.cost + size.cost, .last = size.rows, .smallest = std::min(here.smallest, size.rows)};
        }
      }
    }
  }

  std::vector<Size> sizes_;
  ScratchTerms terms_;
  int64_t cap_bytes_;
  int64_t steps_ = 0; // found_ holds the fastest chunks for this many steps
  int64_t room_ = 0; // bytes that gradients and logits may take
  std::array<Found, kMaxAutomaticRows / kStep + 1> found_;
};

// Returns numbers of tokens for a group, from large to small: all multiples of 16, and those that share the tokens of a
// call evenly, so that no small group is left at the end.
std::vector<int64_t> group_sizes(int64_t tokens, int64_t longest) {
  std::vector<int64_t> sizes{longest};
  for (int64_t rows = kGroupStep; rows < longest; rows += kGroupStep) {
    sizes.push_back(rows);
  }
  for (int64_t groups = 1; groups <= kMostGroups; ++groups) {
    if (const int64_t even = (tokens + groups - 1) / groups; even <= longest) {
      sizes.push_back(even);
    }
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

} // namespace

std::vector<int64_t> most_equal_chunks(const HeadShape& shape, int64_t rows, int64_t limit, int64_t cap_bytes) {
  const ScratchTerms terms = scratch_terms(shape, rows);
  const int64_t for_each = rows * (terms.group_row + terms.gradient_row);
  const int64_t room = cap_bytes - terms.fixed - rows * terms.logits_row;
  return std::vector<int64_t>(for_each > 0 ? std::min(limit, room / for_each) : limit, rows);
}

std::vector<int64_t> fastest_chunks(const HeadShape& shape, int64_t min_chunk_size, int64_t cap_bytes) {
  const int64_t tokens = std::max<int64_t>(shape.tokens, 1);
  const int64_t longest = std::min(std::max(kMaxAutomaticRows, min_chunk_size), tokens);
  struct Group {
    std::vector<int64_t> chunks;
    double cost;
    int64_t bytes;
  };
  std::vector<Group> fitting;
  const auto add = [&](std::vector<int64_t> chunks) {
    const double cost = relative_cost(shape, chunks);
    const int64_t bytes = scratch_bytes(shape, chunks);
    fitting.push_back({std::move(chunks), cost, bytes});
  };
  const auto equal = [&](int64_t rows) {
    return rows <= longest && scratch_bytes(shape, rows) <= cap_bytes
        ? most_equal_chunks(shape, rows, shape.needs_grad ? longest / rows : 1, cap_bytes)
        : std::vector<int64_t>();
  };
  const auto add_equal = [&](int64_t rows) {
    if (std::vector<int64_t> chunks = equal(rows); !chunks.empty()) {
      add(std::move(chunks));
    }
  };
  add_equal(longest);
  for (const Size& size : measured_sizes(min_chunk_size, longest)) {
    // Groups with fewer chunks than fit may share the tokens of the call more evenly.
    std::vector<int64_t> chunks = equal(size.rows);
    for (const size_t half = chunks.size() / 2; chunks.size() > half; chunks.pop_back()) {
      add(chunks);
    }
  }
  if (shape.needs_grad) {
    GroupSearch search(shape, min_chunk_size, longest, cap_bytes);
    int64_t most = 0;
    for (const int64_t rows : group_sizes(tokens, std::min(longest, kMaxAutomaticRows))) {
      if (rows < most / 2) {
        break;
      }
      if (std::vector<int64_t> chunks = search.fastest_group(rows); !chunks.empty()) {
        most = std::max(most, rows);
        add(std::move(chunks));
      }
    }
  }
  // Where no measured size fits, the sizes are powers of two, below min_chunk_size if they have to be.
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(longest)));
  if (fitting.empty()) {
    for (int64_t rows = power; rows >= min_chunk_size; rows /= 2) {
      add_equal(rows);
    }
  }
  add_equal(min_chunk_size);
  for (int64_t rows = power; fitting.empty(); rows /= 2) {
    add_equal(rows);
  }
  const auto least =
      std::min_element(fitting.begin(), fitting.end(), [](const Group& a, const Group& b) { return a.cost < b.cost; });
  const double enough = kAsFast * least->cost;
  const Group* best = &*least;
  for (const Group& group : fitting) {
    if (group.cost <= enough && group.bytes < best->bytes) {
      best = &group;
    }
  }
  return best->chunks;
}

} // namespace distill::losses
