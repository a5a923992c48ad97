#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses::testing {

// The CUDA row kernels on a CPU (tests/losses/emulation/grid.h); all pointers are to the CPU's memory. Two clusters
// share the rows of the cluster kernel; a single row has one.

// The cluster kernel with this number of blocks to a row, in the mode that a launch would choose. Throws where that
// combination is not compiled.
void emulate_cluster_rows(const RowArgs& args, int cluster_size);

// The streaming kernel with this number of blocks to a row, and of groups of columns in a thread's shared memory.
void emulate_streaming_rows(const RowArgs& args, int blocks, int slots);

// The backward kernel of given logits, one row after the other, after emulate_cluster_rows() with RowArgs::saved. For
// JSD, skew forward KL and labels alone, fp32 and bf16.
void emulate_logits_backward(const RowArgs& args);

} // namespace distill::losses::testing
