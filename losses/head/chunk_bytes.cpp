#include "losses/head/chunk_bytes.h"

#include <algorithm>

namespace distill::losses {

namespace {

constexpr int64_t kRowAlignment = 256;

// While the logits of a chunk exist, its own gradients and those of the group's earlier tokens exist, too.
int64_t total_bytes(const ScratchTerms& terms, std::span<const int64_t> chunks) {
  int64_t tokens = 0;
  int64_t most = 0;
  for (const int64_t rows : chunks) {
    tokens += rows;
    most = std::max(most, terms.gradient_row * tokens + terms.logits_row * rows);
  }
  return terms.fixed + terms.group_row * tokens + most;
}

} // namespace

int64_t padded_columns(int64_t vocab, int64_t element_bytes) {
  return (vocab * element_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment / element_bytes;
}

int64_t row_bytes(int64_t columns, int64_t element_bytes) {
  return padded_columns(columns, element_bytes) * element_bytes;
}

bool gradient_in_place(const HeadShape& shape) {
  return shape.needs_grad && shape.gradient_bytes == shape.logits_bytes;
}

ScratchTerms arena_terms(const HeadShape& shape) {
  const int64_t sides = (gradient_in_place(shape) ? 0 : 1) + (shape.teacher_hidden > 0 ? 1 : 0);
  ScratchTerms terms{
      .fixed = shape.fixed_arena_bytes,
      .gradient_row = shape.needs_grad ? row_bytes(shape.vocab, shape.gradient_bytes) : 0,
      .logits_row =
          sides * row_bytes(shape.vocab, shape.logits_bytes) + row_bytes(shape.teacher_entries, shape.entry_bytes)};
  if (shape.gathers_rows) {
    terms.group_row = row_bytes(shape.student_hidden, shape.hidden_bytes) * (shape.needs_grad ? 2 : 1);
    terms.logits_row += row_bytes(shape.teacher_hidden, shape.teacher_hidden_bytes);
  }
  return terms;
}

ScratchTerms scratch_terms(const HeadShape& shape, int64_t longest) {
  ScratchTerms terms = arena_terms(shape);
  terms.fixed += shape.fixed_bytes + shape.row_thread_bytes * std::min(shape.row_threads, longest);
  terms.group_row += shape.extra_bytes_per_row;
  return terms;
}

int64_t arena_bytes(const HeadShape& shape, std::span<const int64_t> chunks) {
  return total_bytes(arena_terms(shape), chunks);
}

int64_t scratch_bytes(const HeadShape& shape, std::span<const int64_t> chunks) {
  return total_bytes(scratch_terms(shape, *std::max_element(chunks.begin(), chunks.end())), chunks);
}

int64_t scratch_bytes(const HeadShape& shape, int64_t chunk) {
  return scratch_bytes(shape, std::span<const int64_t>(&chunk, 1));
}

} // namespace distill::losses
