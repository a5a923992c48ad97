#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "losses/head/chunk_bytes.h"
#include "losses/options.h"

// A plan says for how many tokens logits, and for how many tokens gradients, exist at once in the head.
//
// Logits exist for a chunk of tokens at a time (student and teacher, fp32), their gradients are gathered over the
// chunks of a group, D tokens (in the hidden dtype), and the two backward products run once per group. The product that
// accumulates the weight gradient reads and writes 8 bytes per weight each time, so it is fast only for a large D; the
// logits products are fast from a few hundred tokens on.
//
// While the first chunk of a group is computed there are no gradients yet, and its logits may take their memory: the
// chunks of a group become smaller as its gradients become more. With two sides at 4 bytes a logit and 2 a gradient, in
// 4096 bytes a column: 384, 320, 256 and 214 tokens' logits, 1174 tokens' gradients, where chunks of one size are 256
// and 1024. Where logits and gradients have elements of the same size, the gradients are written over the student's
// logits, and besides them only the teacher's logits take memory.
namespace distill::losses {

struct ChunkPlan {
  // The tokens of each chunk of a full group; the largest is first. The last group of a call has the first of them,
  // of which the last one may be cut.
  std::vector<int64_t> logits_rows;
  int64_t gradient_rows = 0; // D: the sum of logits_rows
  int64_t bytes = 0; // of all scratch, at most the cap
  int64_t arena_bytes = 0; // the part of `bytes` that linear_head cuts out of its arena; on CUDA it is all of them
  std::string description; // one line for the log

  // Return how many chunks, and how many groups, a call of this many tokens has; 0 for an empty plan.
  int64_t num_chunks(int64_t tokens) const;
  int64_t num_groups(int64_t tokens) const;
};

// memory_cap_mb is a hard limit and takes precedence over chunk_size and min_chunk_size. With a chunk_size all chunks
// have that size; one that does not fit is cut to a power of two. Every automatic chunk has at least min_chunk_size
// tokens, except the last of a group. Ignored tokens only cut the plan short: of two batches that leave some out, that
// with more of them takes no more scratch. Returns InvalidArgument, with the smallest value that works, if the cap is
// too small for one token.
absl::StatusOr<ChunkPlan> resolve_chunks(const ChunkOptions& options, const HeadShape& shape);

} // namespace distill::losses
