#pragma once

#include <ATen/core/Tensor.h>

#include "losses/head/chunk_policy.h"
#include "losses/head/inputs.h"

// The head's arena: its size, and the matrices in it.
namespace distill::losses {

// The sizes that decide the chunks. `device`: the device type whose kernels run; the inputs may be meta tensors.
HeadShape head_shape(
    const LinearHeadInputs& inputs, const LossOptions& options, bool needs_grad, c10::DeviceType device);

// Cuts the arena into matrices whose rows start 256 bytes apart.
class Scratch {
 public:
  explicit Scratch(at::Tensor arena) : arena_(std::move(arena)) {}

  at::Tensor matrix(int64_t rows, int64_t columns, at::ScalarType type);

 private:
  at::Tensor arena_; // uint8
  int64_t used_ = 0; // bytes
};

} // namespace distill::losses
