#pragma once

#include <c10/core/Device.h>

#include "losses/rows.h"

namespace distill::losses {

// The row computation in ATen operations, on any device: readable rather than fast, with temporaries of [R, V].
void rows_aten(const RowArgs& args, c10::Device device);

} // namespace distill::losses
