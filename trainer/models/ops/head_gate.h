#pragma once

#include <ATen/core/Tensor.h>

// The gate of attention's output: x times sigmoid(gate), element by element. N tokens, A heads, D head_dim, Q = A * D.
// The gate is a view [N, A, D] whose last dimension is contiguous. A result does not depend on its place.
namespace distill::models {

// x [N, Q] contiguous, as the result is.
at::Tensor head_gate_forward(const at::Tensor& x_NQ, const at::Tensor& gate_NAD);

// Returns dx, and writes the gate's gradient into dgate, a view like the gate.
at::Tensor head_gate_backward(
    const at::Tensor& dy_NQ, const at::Tensor& x_NQ, const at::Tensor& gate_NAD, at::Tensor& dgate_NAD);

} // namespace distill::models
