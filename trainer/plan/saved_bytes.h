#pragma once

#include <vector>

#include "trainer/plan/run_shape.h"

namespace distill::plan {

// Bytes that a block of the student saves for its backward pass in one micro-batch.
struct BlockBytes {
  int64_t all = 0;
  int64_t input = 0; // what it needs to run again: its input, or with memory.recompute also attention's output
};

// Measures what each of the student's kinds of layers saves, on the block's own forward pass in a simulation.
std::vector<BlockBytes> saved_bytes(const RunShape& shape);

} // namespace distill::plan
