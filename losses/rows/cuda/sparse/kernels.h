#pragma once

#include <cuda_runtime.h>

#include "losses/rows/sparse_args.h"

// The stages of rows with a sparse teacher, one kernel each. Each returns null, or an error message.
namespace distill::losses {

const char* launch_take_entries(const SparseRowArgs& args, cudaStream_t stream);
const char* launch_sparse_loss(const SparseRowArgs& args, cudaStream_t stream);
const char* launch_log_probs(const SparseRowArgs& args, cudaStream_t stream);

} // namespace distill::losses
