#include "losses/head/chunk_policy.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "losses/head/chunk_search.h"

namespace distill::losses {

namespace {

constexpr int64_t kMiB = 1 << 20;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Returns chunks of one size: as many of them as have room for their gradients.
std::vector<int64_t> chunks_of_size(int64_t chunk_size, const HeadShape& shape, int64_t cap_bytes) {
  const int64_t tokens = std::max<int64_t>(shape.tokens, 1);
  int64_t rows = std::min(chunk_size, tokens);
  if (scratch_bytes(shape, rows) > cap_bytes) {
    rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)));
    while (scratch_bytes(shape, rows) > cap_bytes) {
      rows /= 2;
    }
  }
  const int64_t limit = std::min(kMaxAutomaticRows / rows, ceil_div(tokens, rows));
  return most_equal_chunks(shape, rows, std::max<int64_t>(limit, 1), cap_bytes);
}

// Keeps the first `tokens` tokens of a group.
void cut(std::vector<int64_t>& chunks, int64_t tokens) {
  for (size_t k = 0; k < chunks.size(); ++k) {
    chunks[k] = std::min(chunks[k], tokens);
    tokens -= chunks[k];
    if (tokens == 0) {
      chunks.resize(k + 1);
    }
  }
}

std::string describe(const ChunkOptions& options, const HeadShape& shape, const ChunkPlan& plan) {
  const std::vector<int64_t>& rows = plan.logits_rows;
  const bool equal = std::all_of(rows.begin(), rows.end() - 1, [&](int64_t r) { return r == rows.front(); });
  return absl::StrFormat(
      "loss head: logits of %s tokens at a time, gradients of %d, %.1f MiB of scratch (cap %d MiB, vocabulary %d)",
      equal ? absl::StrCat(rows.front()) : absl::StrJoin(rows, ", "), plan.gradient_rows,
      static_cast<double>(plan.bytes) / kMiB, options.memory_cap_mb, shape.vocab);
}

} // namespace

int64_t ChunkPlan::num_chunks(int64_t tokens) const {
  if (tokens <= 0 || logits_rows.empty()) {
    return 0;
  }
  int64_t chunks = tokens / gradient_rows * static_cast<int64_t>(logits_rows.size());
  int64_t rest = tokens % gradient_rows;
  for (size_t k = 0; rest > 0; ++k, ++chunks) {
    rest -= logits_rows[k];
  }
  return chunks;
}

int64_t ChunkPlan::num_groups(int64_t tokens) const {
  return tokens > 0 && gradient_rows > 0 ? ceil_div(tokens, gradient_rows) : 0;
}

absl::StatusOr<ChunkPlan> resolve_chunks(const ChunkOptions& options, const HeadShape& shape) {
  if (const absl::Status status = validate(options); !status.ok()) {
    return status;
  }
  const int64_t cap_bytes = options.memory_cap_mb * kMiB;
  if (const int64_t one = scratch_bytes(shape, 1); one > cap_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory_cap_mb: %d MiB is too small for one token of the loss head, which needs %d bytes (vocabulary %d); the "
        "smallest value that works is %d",
        options.memory_cap_mb, one, shape.vocab, ceil_div(one, kMiB)));
  }
  ChunkPlan plan;
  plan.logits_rows = options.chunk_size > 0 ? chunks_of_size(options.chunk_size, shape, cap_bytes)
                                            : fastest_chunks(shape, options.min_chunk_size, cap_bytes);
  cut(plan.logits_rows, std::max<int64_t>(shape.tokens - shape.ignored_tokens, 1));
  plan.gradient_rows = std::accumulate(plan.logits_rows.begin(), plan.logits_rows.end(), int64_t{0});
  plan.bytes = scratch_bytes(shape, plan.logits_rows);
  plan.arena_bytes = arena_bytes(shape, plan.logits_rows);
  plan.description = describe(options, shape, plan);
  return plan;
}

} // namespace distill::losses
