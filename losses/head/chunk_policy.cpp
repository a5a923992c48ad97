#include "losses/head/chunk_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <absl/strings/str_format.h>

namespace distill::losses {

namespace {

constexpr int64_t kMaxAutomaticRows = 4096; // the products gain nothing beyond
constexpr int64_t kGradientRowsStep = 16;
constexpr int64_t kSmallChunk = 512; // tokens' logits
constexpr int64_t kManyGradientRows = 2048; // from here on the weight gradient gains little
constexpr double kAsFast = 1.003; // times differ more than that from run to run
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRowAlignment = 256;

int64_t power_of_two_at_most(int64_t value) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The time of a token in a product over this many rows, relative to the same product at its best number of rows. Means
// over five shapes on an H200 (docs/loss_head.md), by losses/products/fp32_product.h. The logits products have good and
// bad sizes (384 rows are fast, 448 are not); those that were not measured are not used.
struct MeasuredRows {
  int64_t rows;
  double time;
};
constexpr std::array<MeasuredRows, 12> kLogitsProduct{{
    {128, 1.62},
    {192, 1.27},
    {256, 1.08},
    {320, 1.07},
    {384, 1.02},
    {512, 1.04},
    {640, 1.05},
    {1024, 1.06},
    {1280, 1.05},
    {1536, 1.03},
    {2048, 1.02},
    {4096, 1.0},
}};
// Tokens whose logits products take as long as what a chunk costs besides them: launches, and the row kernel's first
// and last rows, which leave multiprocessors idle. From the head's own times under two caps.
constexpr double kTokensPerChunk = 32;
constexpr std::array<MeasuredRows, 10> kWeightGradientProduct{{
    {256, 4.3},
    {384, 2.86},
    {512, 2.2},
    {768, 1.56},
    {1024, 1.26},
    {1280, 1.11},
    {1536, 1.08},
    {2048, 1.05},
    {3072, 1.02},
    {4096, 1.0},
}};

// Between the measured numbers of rows on a line; below them a product takes as long as with the fewest rows, since it
// has to read and write the weights all the same.
template <size_t kSize>
double relative_time(const std::array<MeasuredRows, kSize>& measured, int64_t rows) {
  const auto x = static_cast<double>(std::max<int64_t>(rows, 1));
  if (rows <= measured.front().rows) {
    return measured.front().time * static_cast<double>(measured.front().rows) / x;
  }
  for (size_t k = 1; k < kSize; ++k) {
    const MeasuredRows& low = measured[k - 1];
    const MeasuredRows& high = measured[k];
    if (rows <= high.rows) {
      const double share = (x - static_cast<double>(low.rows)) / static_cast<double>(high.rows - low.rows);
      return low.time + share * (high.time - low.time);
    }
  }
  return measured.back().time;
}

int64_t round_up(int64_t value, int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

// The largest multiple of `step`, at most `limit` where that is at least one, whose scratch fits; 0 where even one
// multiple does not.
int64_t most_gradient_rows(
    const HeadShape& shape, int64_t logits_rows, int64_t step, int64_t limit, int64_t cap_bytes) {
  int64_t low = 0; // multiples that fit
  int64_t high = std::max<int64_t>(limit / step, 1) + 1; // that do not, or are not wanted
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (scratch_bytes(shape, logits_rows, middle * step) <= cap_bytes ? low : high) = middle;
  }
  return low * step;
}

// `count` tokens in chunks of `rows`, of which the last one may be smaller: the sum of rows times time(rows).
template <typename Time>
double time_of_chunks(int64_t count, int64_t rows, const Time& time) {
  const int64_t rest = count % rows;
  return static_cast<double>(count - rest) * time(rows) + (rest > 0 ? static_cast<double>(rest) * time(rest) : 0.0);
}

ChunkPlan describe(const ChunkOptions& options, const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows) {
  ChunkPlan plan{.logits_rows = logits_rows, .gradient_rows = gradient_rows};
  plan.bytes = scratch_bytes(shape, logits_rows, gradient_rows);
  plan.arena_bytes = arena_bytes(shape, logits_rows, gradient_rows);
  plan.description = absl::StrFormat(
      "loss head: logits of %d tokens at a time, gradients of %d, %.1f MiB of scratch (cap %d MiB, vocabulary %d)",
      logits_rows, gradient_rows, static_cast<double>(plan.bytes) / kMiB, options.memory_cap_mb, shape.vocab);
  return plan;
}

} // namespace

double relative_cost(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows) {
  const auto hidden = static_cast<double>(shape.student_hidden + shape.teacher_hidden);
  const auto student_hidden = static_cast<double>(shape.student_hidden);
  const auto of_gradient_chunk = [&](int64_t tokens) {
    const double logits = time_of_chunks(tokens, logits_rows, [&](int64_t rows) {
      return relative_time(kLogitsProduct, rows) + kTokensPerChunk / static_cast<double>(rows);
    });
    const double of_token = logits / static_cast<double>(tokens) * hidden;
    return shape.needs_grad ? of_token + student_hidden * relative_time(kWeightGradientProduct, tokens) : of_token;
  };
  // Of few tokens the number does not matter: how many of a batch are ignored should not change the sizes.
  const int64_t tokens = std::max<int64_t>(shape.tokens, kMaxAutomaticRows);
  return time_of_chunks(tokens, gradient_rows, of_gradient_chunk) / static_cast<double>(tokens);
}

int64_t padded_columns(int64_t vocab, int64_t element_bytes) {
  return ceil_div(vocab * element_bytes, kRowAlignment) * kRowAlignment / element_bytes;
}

int64_t row_bytes(int64_t columns, int64_t element_bytes) {
  return padded_columns(columns, element_bytes) * element_bytes;
}

bool gradient_in_place(const HeadShape& shape) {
  return shape.needs_grad && shape.gradient_bytes == shape.logits_bytes;
}

int64_t arena_bytes(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows) {
  const int64_t sides = (gradient_in_place(shape) ? 0 : 1) + (shape.teacher_hidden > 0 ? 1 : 0);
  int64_t per_logits_row =
      sides * row_bytes(shape.vocab, shape.logits_bytes) + row_bytes(shape.teacher_entries, shape.entry_bytes);
  int64_t per_gradient_row = shape.needs_grad ? row_bytes(shape.vocab, shape.gradient_bytes) : 0;
  if (shape.gathers_rows) {
    per_logits_row += row_bytes(shape.teacher_hidden, shape.teacher_hidden_bytes);
    per_gradient_row += row_bytes(shape.student_hidden, shape.hidden_bytes) * (shape.needs_grad ? 2 : 1);
  }
  return shape.fixed_arena_bytes + per_logits_row * logits_rows + per_gradient_row * gradient_rows;
}

int64_t scratch_bytes(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows) {
  return arena_bytes(shape, logits_rows, gradient_rows) + shape.fixed_bytes +
      shape.extra_bytes_per_row * gradient_rows + shape.row_thread_bytes * std::min(shape.row_threads, logits_rows);
}

absl::StatusOr<ChunkPlan> resolve_chunks(const ChunkOptions& options, const HeadShape& shape) {
  if (const absl::Status status = validate(options); !status.ok()) {
    return status;
  }
  const int64_t cap_bytes = options.memory_cap_mb * kMiB;
  if (const int64_t one = scratch_bytes(shape, 1, 1); one > cap_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory_cap_mb: %d MiB is too small for one token of the loss head, which needs %d bytes (vocabulary %d); the "
        "smallest value that works is %d",
        options.memory_cap_mb, one, shape.vocab, ceil_div(one, kMiB)));
  }
  const int64_t tokens = std::max<int64_t>(shape.tokens, 1);
  if (options.chunk_size > 0) {
    int64_t rows = std::min(options.chunk_size, tokens);
    if (scratch_bytes(shape, rows, rows) > cap_bytes) {
      rows = power_of_two_at_most(rows);
      while (scratch_bytes(shape, rows, rows) > cap_bytes) {
        rows /= 2;
      }
    }
    const int64_t limit = std::max(rows, std::min(kMaxAutomaticRows, round_up(tokens, rows)));
    return describe(options, shape, rows, most_gradient_rows(shape, rows, rows, limit, cap_bytes));
  }

  const int64_t longest = std::min(std::max(kMaxAutomaticRows, options.min_chunk_size), tokens);
  struct Sizes {
    int64_t rows;
    int64_t gradient_rows;
    double cost;
    int64_t bytes;
  };
  std::vector<Sizes> fitting;
  const auto add = [&](int64_t rows, int64_t gradient_rows) {
    fitting.push_back(
        {rows, gradient_rows, relative_cost(shape, rows, gradient_rows), scratch_bytes(shape, rows, gradient_rows)});
  };
  const auto consider = [&](int64_t rows) {
    if (rows > longest) {
      return;
    }
    // With fewer gradient rows than fit, the last chunk may be less of a remainder.
    const int64_t most = most_gradient_rows(shape, rows, rows, std::max(longest, rows), cap_bytes);
    for (int64_t gradient_rows = most; gradient_rows >= std::max(rows, most / 2); gradient_rows -= rows) {
      add(rows, gradient_rows);
    }
    // And with more than a multiple of `rows`: otherwise a vocabulary a little wider would lose a whole chunk of them,
    // which matters where the chunks are small; large ones of odd sizes are slow.
    const int64_t all = most_gradient_rows(shape, rows, kGradientRowsStep, longest, cap_bytes);
    if (all > rows && rows <= kSmallChunk && most < kManyGradientRows && tokens >= kMaxAutomaticRows) {
      add(rows, all);
    }
  };
  consider(longest);
  for (const MeasuredRows& measured : kLogitsProduct) {
    if (measured.rows >= options.min_chunk_size) {
      consider(measured.rows);
    }
  }
  consider(options.min_chunk_size);
  for (int64_t rows = power_of_two_at_most(longest); rows >= 1 && fitting.empty(); rows /= 2) {
    consider(rows);
  }
  const double least = std::min_element(fitting.begin(), fitting.end(), [](const Sizes& a, const Sizes& b) {
                         return a.cost < b.cost;
                       })->cost;
  const Sizes* best = nullptr; // the fewest bytes of those that are as fast
  for (const Sizes& sizes : fitting) {
    if (sizes.cost <= kAsFast * least && (best == nullptr || sizes.bytes < best->bytes)) {
      best = &sizes;
    }
  }
  return describe(options, shape, best->rows, best->gradient_rows);
}

} // namespace distill::losses
