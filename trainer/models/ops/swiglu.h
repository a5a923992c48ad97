#pragma once

#include <ATen/core/Tensor.h>

// SwiGLU on the fused projection: columns [0, F) are the gate, [F, 2F) the up projection. act = silu(gate) * up.
namespace distill::models {

at::Tensor swiglu_forward(const at::Tensor& gate_up_N2F);

struct SwigluBackward {
  at::Tensor dgate_up_N2F;
  at::Tensor act_NF; // the product again, for the gradient of the down projection; undefined unless asked for
};

// `needs_act`: whether the caller wants the recomputed product.
SwigluBackward swiglu_backward(const at::Tensor& dact_NF, const at::Tensor& gate_up_N2F, bool needs_act);

} // namespace distill::models
