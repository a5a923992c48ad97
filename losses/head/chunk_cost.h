#pragma once

#include <cstdint>
#include <span>

#include "losses/head/chunk_bytes.h"

// The chunks are chosen by measured times of the head's products, which depend on the number of tokens.
namespace distill::losses {

struct MeasuredRows {
  int64_t rows;
  double time; // of a token in a product over this many rows, relative to the same product at its best number
};

// Returns the numbers of tokens at which the logits products were measured, from small to large.
std::span<const MeasuredRows> measured_logits_products();

// Returns the estimated time of the logits of these tokens as one chunk, in tokens at the best number of them.
double chunk_cost(int64_t rows);

// Returns the estimated time of a token in the products whose time depends on the chunks, where the head's
// `shape.tokens` tokens go through `chunks` repeatedly (ChunkPlan::logits_rows). All chunks of a shape share its unit.
double relative_cost(const HeadShape& shape, std::span<const int64_t> chunks);

} // namespace distill::losses
