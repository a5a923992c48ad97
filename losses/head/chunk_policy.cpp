#include "losses/head/chunk_policy.h"

#include <algorithm>
#include <bit>

#include <absl/strings/str_format.h>

namespace distill::losses {

namespace {

constexpr int64_t kMaxAutomaticRows = 4096; // the products gain nothing beyond
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRowAlignment = 256;

int64_t power_of_two_at_most(int64_t value) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Milliseconds beyond the ideal, from runs on an H200 with V = 128256, H = 4096 (docs/loss_head.md): the logits
// products lose 2150 / C, the weight gradient's accumulation 12700 / D. Only the ratio of the two matters here.
double cost(int64_t logits_rows, int64_t gradient_rows) {
  return 2150.0 / static_cast<double>(logits_rows) + 12700.0 / static_cast<double>(gradient_rows);
}

// The largest multiple of `logits_rows`, at most `limit`, whose scratch fits; 0 where even one multiple does not.
int64_t largest_gradient_rows(const HeadShape& shape, int64_t logits_rows, int64_t limit, int64_t cap_bytes) {
  int64_t low = 0; // fits
  int64_t high = std::max<int64_t>(limit / logits_rows, 1) + 1; // does not, or is not wanted
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (scratch_bytes(shape, logits_rows, middle * logits_rows) <= cap_bytes ? low : high) = middle;
  }
  return low * logits_rows;
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

int64_t padded_columns(int64_t vocab, int64_t element_bytes) {
  return ceil_div(vocab * element_bytes, kRowAlignment) * kRowAlignment / element_bytes;
}

int64_t row_bytes(int64_t columns, int64_t element_bytes) {
  return padded_columns(columns, element_bytes) * element_bytes;
}

int64_t arena_bytes(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows) {
  const int64_t sides = shape.teacher_hidden > 0 ? 2 : 1;
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
    if (largest_gradient_rows(shape, rows, rows, cap_bytes) == 0) {
      rows = power_of_two_at_most(rows);
      while (largest_gradient_rows(shape, rows, rows, cap_bytes) == 0) {
        rows /= 2;
      }
    }
    const int64_t limit = std::max(rows, std::min(kMaxAutomaticRows, ceil_div(tokens, rows) * rows));
    return describe(options, shape, rows, largest_gradient_rows(shape, rows, limit, cap_bytes));
  }

  const int64_t longest = std::max(kMaxAutomaticRows, options.min_chunk_size);
  ChunkPlan best;
  const auto consider = [&](int64_t rows) {
    const int64_t limit = std::max(rows, std::min(longest, ceil_div(tokens, rows) * rows));
    const int64_t gradient_rows = largest_gradient_rows(shape, rows, limit, cap_bytes);
    if (gradient_rows > 0 &&
        (best.logits_rows == 0 || cost(rows, gradient_rows) < cost(best.logits_rows, best.gradient_rows))) {
      best = describe(options, shape, rows, gradient_rows);
    }
  };
  consider(std::min(longest, tokens));
  for (int64_t rows = power_of_two_at_most(std::min(longest, tokens)); rows >= options.min_chunk_size; rows /= 2) {
    consider(rows);
  }
  if (options.min_chunk_size < tokens) {
    consider(options.min_chunk_size);
  }
  for (int64_t rows = power_of_two_at_most(std::min(longest, tokens)); rows >= 1 && best.logits_rows == 0; rows /= 2) {
    consider(rows);
  }
  return best;
}

} // namespace distill::losses
