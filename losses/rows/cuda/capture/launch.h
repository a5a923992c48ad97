#pragma once

#include "losses/rows/capture_args.h"

namespace distill::losses {

// Queues the kernel of a stage on `stream` (a cudaStream_t). Returns null, or an error message. rows/cuda/no_cuda.cpp
// stands in for builds without CUDA.
const char* launch_capture_rows(const CaptureRowArgs& args, CaptureStage stage, void* stream);

} // namespace distill::losses
