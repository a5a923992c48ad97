#pragma once

#include <cuda_runtime.h>

#include "losses/rows/sparse_args.h"

// Each function queues the kernel of one stage of rows with a sparse teacher, and returns null, or an error message.
namespace distill::losses {

const char* launch_take_entries(const SparseRowArgs& args, cudaStream_t stream);
const char* launch_sparse_loss(const SparseRowArgs& args, cudaStream_t stream);
const char* launch_log_probs(const SparseRowArgs& args, cudaStream_t stream);

} // namespace distill::losses
