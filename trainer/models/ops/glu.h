#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/float8.h"

// Gated linear units on the fused projection: columns [0, F) are the gate, [F, 2F) the up projection. act is
// silu(gate) * up or gelu(gate) * up (Activation).
namespace distill::models {

at::Tensor glu_forward(const at::Tensor& gate_up_N2F, Activation activation);

// Computes act rounded to its own dtype and then by float8_rows, in one pass on CUDA. `counts`: of rounding (float8.h);
// may be undefined.
Float8Rows glu_forward_float8(const at::Tensor& gate_up_N2F, Activation activation, const at::Tensor& counts = {});

// Computes the gradient in place, so that the widest tensors of a block exist once: gate_up becomes its own gradient.
// If `needs_act`, dact becomes act again, for the gradient of the down projection; otherwise it is left as it is. Both
// must be contiguous.
void glu_backward_(at::Tensor& dact_NF, at::Tensor& gate_up_N2F, Activation activation, bool needs_act);

} // namespace distill::models
