#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "losses/rows/cuda/launch.h"

namespace distill::losses {

// Throws for types that the row kernels do not know.
ElementType element_type(c10::ScalarType type);

// The rows on this device: on the CPU at once, on CUDA queued on its current stream.
void run_rows(const RowArgs& args, c10::Device device, const RowLaunch& launch = {});

} // namespace distill::losses
