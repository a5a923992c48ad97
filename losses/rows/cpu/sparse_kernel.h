#pragma once

#include "losses/rows/sparse_args.h"

namespace distill::losses {

// Computes one stage of rows with a sparse teacher on the CPU, with the rows spread over threads and without scratch.
// Returns null, or an error message for ids that are no columns or that a row of top-k names twice.
const char* sparse_rows_cpu(const SparseRowArgs& args, SparseStage stage);

// Each computes rows [begin, end) of SparseStage::kLoss on this thread for one instruction set.
namespace portable {
void sparse_rows_range(const SparseRowArgs& args, int64_t begin, int64_t end);
}
namespace avx2 {
void sparse_rows_range(const SparseRowArgs& args, int64_t begin, int64_t end);
}
namespace avx512 {
void sparse_rows_range(const SparseRowArgs& args, int64_t begin, int64_t end);
}

} // namespace distill::losses
