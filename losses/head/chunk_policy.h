#pragma once

#include <cstdint>
#include <string>

#include <absl/status/statusor.h>

#include "losses/options.h"

// How many tokens' logits, and how many tokens' gradients, exist at once in the head.
//
// Two sizes: logits exist for C tokens at a time (student and teacher, fp32), their gradients are gathered for D >= C
// tokens (in the hidden dtype), and the two backward products run once per D tokens. The product that accumulates the
// weight gradient reads and writes 8 bytes per weight each time, so it is fast only for a large D; the logits products
// are fast from a few hundred tokens on. Where logits and gradients have elements of the same size, the gradients are
// written over the student's logits, which then have memory for D tokens.
namespace distill::losses {

// The numbers that decide the bytes per token. All counts are numbers of elements, not bytes.
struct HeadShape {
  int64_t tokens = 0; // N: no more tokens than this are allocated
  int64_t vocab = 0; // columns of the logits
  int64_t student_hidden = 0;
  int64_t teacher_hidden = 0; // 0: no teacher
  int64_t teacher_entries = 0; // of a token, where the teacher is top-k or samples
  int64_t logits_bytes = 4; // per logit: 2, 4 or 8
  int64_t gradient_bytes = 2; // per logit gradient: the hidden dtype's
  int64_t hidden_bytes = 2; // per hidden element of the student, for gathered rows
  int64_t teacher_hidden_bytes = 2; // per hidden element of the teacher
  int64_t entry_bytes = 4; // per student's logit of an entry
  bool needs_grad = true;
  bool gathers_rows = false; // ignored rows are left out, so hidden rows are copied chunk by chunk
  int64_t fixed_arena_bytes = 0; // scratch of the arena that does not grow with the chunk
  // Memory outside the arena that the products and the row kernel allocate while they run, on the CPU.
  int64_t fixed_bytes = 0;
  int64_t extra_bytes_per_row = 0; // for each of the D rows
  int64_t row_threads = 0; // threads of the row kernel: no more of them than rows of a chunk
  int64_t row_thread_bytes = 0; // memory of each thread
};

struct ChunkPlan {
  int64_t logits_rows = 0; // C
  int64_t gradient_rows = 0; // D, at least C
  int64_t bytes = 0; // of all scratch, at most the cap
  int64_t arena_bytes = 0; // of these, the bytes that linear_head cuts out of its arena; on CUDA that is all
  std::string description; // one line for the log
};

// Rows of the logits and gradient buffers start 256 bytes apart: this many columns hold `vocab` elements of `bytes`
// each.
int64_t padded_columns(int64_t vocab, int64_t element_bytes);
int64_t row_bytes(int64_t columns, int64_t element_bytes);

// Whether the gradients are written over the student's logits.
bool gradient_in_place(const HeadShape& shape);

// Bytes of scratch for these two sizes: in the arena, and all together.
int64_t arena_bytes(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows);
int64_t scratch_bytes(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows);

// The estimated time of a token in the products whose time depends on the two sizes, smaller chunks at the end counted.
// In the same unit for all sizes of a shape. Fewer than 4096 tokens are estimated as 4096.
double relative_cost(const HeadShape& shape, int64_t logits_rows, int64_t gradient_rows);

// memory_cap_mb is a hard limit and takes precedence over chunk_size and min_chunk_size; a chunk_size that does not fit
// is cut to a power of two. InvalidArgument, with the smallest value that works, if it is too small for one token.
absl::StatusOr<ChunkPlan> resolve_chunks(const ChunkOptions& options, const HeadShape& shape);

} // namespace distill::losses
