#pragma once

#include <cstdint>
#include <span>

// These functions compute the bytes of the head's scratch for given chunks of tokens.
namespace distill::losses {

// A HeadShape has the numbers that decide the bytes per token. All counts are numbers of elements, not bytes.
struct HeadShape {
  int64_t tokens = 0; // N: buffers are for no more tokens than this
  int64_t ignored_tokens = 0; // tokens of these that are left out and have no buffers
  int64_t vocab = 0; // columns of the logits
  int64_t student_hidden = 0;
  int64_t teacher_hidden = 0; // 0: no teacher
  int64_t teacher_entries = 0; // entries of a token, where the teacher is top-k or samples
  int64_t logits_bytes = 4; // per logit: 2, 4 or 8
  int64_t gradient_bytes = 2; // per logit gradient: the hidden dtype's
  int64_t hidden_bytes = 2; // per hidden element of the student, for gathered rows
  int64_t teacher_hidden_bytes = 2; // per hidden element of the teacher
  int64_t entry_bytes = 4; // per student's logit of an entry
  bool needs_grad = true;
  bool gathers_rows = false; // ignored rows are left out, so hidden rows are copied chunk by chunk
  int64_t fixed_arena_bytes = 0; // scratch of the arena that does not grow with the chunk
  // On the CPU the products and the row kernel allocate this memory outside the arena while they run.
  int64_t fixed_bytes = 0;
  int64_t extra_bytes_per_row = 0; // for each of the D rows
  int64_t row_threads = 0; // threads of the row kernel; a chunk uses at most one for each of its rows
  int64_t row_thread_bytes = 0; // memory of each thread
};

// Rows of the logits and gradient buffers start 256 bytes apart: this many columns hold `vocab` elements of `bytes`
// each.
int64_t padded_columns(int64_t vocab, int64_t element_bytes);
int64_t row_bytes(int64_t columns, int64_t element_bytes);

// Returns whether the gradients are written over the student's logits.
bool gradient_in_place(const HeadShape& shape);

// ScratchTerms are the bytes of scratch that are fixed, and those for each token.
struct ScratchTerms {
  int64_t fixed = 0;
  int64_t group_row = 0; // for each of the D tokens of a group, during all of its chunks
  int64_t gradient_row = 0; // for each token of a group, from the first one to the last one of the current chunk
  int64_t logits_row = 0; // for each token of the current chunk
};
ScratchTerms arena_terms(const HeadShape& shape);
// These terms include what is allocated outside the arena, where no chunk has more tokens than `longest`.
ScratchTerms scratch_terms(const HeadShape& shape, int64_t longest);

// Returns the bytes of scratch for these chunks, whose gradients are gathered: in the arena, and in all.
int64_t arena_bytes(const HeadShape& shape, std::span<const int64_t> chunks);
int64_t scratch_bytes(const HeadShape& shape, std::span<const int64_t> chunks);
int64_t scratch_bytes(const HeadShape& shape, int64_t chunk); // of one chunk alone

} // namespace distill::losses
