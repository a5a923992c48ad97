#pragma once

#include <ATen/core/Tensor.h>

namespace distill::device {

// Copies a few bytes between pinned host memory and a GPU, with a kernel on the GPU's current stream. A copy engine
// serves the large copies of other streams first, such as those of optimizer state, so that a step's tokens and numbers
// would wait for all of them. `to` and `from`: contiguous, the same dtype and size; with other memory or more than 1
// MiB it is an ordinary copy that does not wait.
void copy_small(at::Tensor to, const at::Tensor& from);

} // namespace distill::device
