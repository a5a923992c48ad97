#pragma once

#include <cuda_runtime.h>

#include "losses/rows/capture_args.h"

// These kernels make a sparse teacher out of logits. Each function returns null, or an error message.
namespace distill::losses {

const char* launch_topk(const CaptureRowArgs& args, cudaStream_t stream);
const char* launch_samples(const CaptureRowArgs& args, cudaStream_t stream);

} // namespace distill::losses
