#pragma once

#include <cstdint>
#include <span>

#include "losses/head/chunk_bytes.h"

// Measured times of the head's products by their number of tokens.
namespace distill::losses {

struct MeasuredRows {
  int64_t rows;
  double time; // of a token in a product over this many rows, relative to the same product at its best number
};

// The numbers of tokens at which the logits products were measured, from small to large.
std::span<const MeasuredRows> measured_logits_products();

// The estimated time of the logits of these tokens as one chunk, in tokens at the best number of them.
double chunk_cost(int64_t rows);

// The estimated time of a token in the products whose time depends on the chunks, where the head's `shape.tokens` go
// through `chunks` again and again (ChunkPlan::logits_rows). In the same unit for all chunks of a shape.
double relative_cost(const HeadShape& shape, std::span<const int64_t> chunks);

} // namespace distill::losses
