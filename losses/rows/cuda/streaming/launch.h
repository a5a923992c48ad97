#pragma once

#include <cuda_runtime.h>

#include "losses/rows/cuda/launch.h"

namespace distill::losses {

// Queues the streaming kernel, for any dtype, width and alignment. Returns null, or an error message.
const char* launch_rows_streaming(const RowArgs& args, const RowLaunch& launch, cudaStream_t stream);

} // namespace distill::losses
