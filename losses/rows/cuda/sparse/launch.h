#pragma once

#include "losses/rows/sparse_args.h"

namespace distill::losses {

// Queues one stage of rows with a sparse teacher on `stream` (a cudaStream_t). Returns null, or an error message.
// rows/cuda/no_cuda.cpp stands in for builds without CUDA.
const char* launch_sparse_rows(const SparseRowArgs& args, SparseStage stage, void* stream);

} // namespace distill::losses
