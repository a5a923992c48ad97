#pragma once

#include <c10/core/Device.h>

#include "losses/rows/row_args.h"

namespace distill::losses::testing {

// The rows in ATen operations, on any device: the reference for the row kernels. Readable rather than fast, with
// temporaries of [R, V].
void reference_rows(const RowArgs& args, c10::Device device);

} // namespace distill::losses::testing
