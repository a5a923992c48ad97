#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses::testing {

// The CUDA row kernels on a CPU (tests/losses/emulation/grid.h); all pointers are to the CPU's memory. Two clusters
// share the rows of the cluster kernel; a single row has one.

// The cluster kernel with this number of blocks to a row, in the mode that a launch would choose. Throws where that
// combination is not compiled.
void emulate_cluster_rows(const RowArgs& args, int cluster_size);

void emulate_streaming_rows(const RowArgs& args, int cluster_size);

} // namespace distill::losses::testing
