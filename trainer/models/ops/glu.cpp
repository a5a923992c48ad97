#include "trainer/models/ops/glu.h"

#include "trainer/device/simulation.h"
#include "trainer/models/ops/float8_launch.h"
#include "trainer/models/ops/glu_kernel.h"

namespace distill::models {
namespace {

void check_gate_up(const at::Tensor& gate_up_N2F) {
  TORCH_CHECK(
      gate_up_N2F.dim() == 2 && gate_up_N2F.size(1) % 2 == 0, "glu: [N, 2F] is expected, found ", gate_up_N2F.sizes());
}

// gelu by its approximation with tanh, or silu.
at::Tensor gate_activation(const at::Tensor& gate_NF, Activation activation) {
  return activation == Activation::kGeGlu ? at::gelu(gate_NF, "tanh") : at::silu(gate_NF);
}

GluActivation kernel_activation(Activation activation) {
  return activation == Activation::kGeGlu ? GluActivation::kGelu : GluActivation::kSilu;
}

void backward_cuda(at::Tensor& dact_NF, at::Tensor& gate_up_N2F, Activation activation, bool needs_act) {
  if (gate_up_N2F.numel() == 0) {
    return;
  }
  GluBackwardArgs args{};
  args.dact = dact_NF.const_data_ptr();
  args.gate_up = gate_up_N2F.const_data_ptr();
  args.dgate_up = gate_up_N2F.mutable_data_ptr();
  args.act = needs_act ? dact_NF.mutable_data_ptr() : nullptr;
  args.rows = dact_NF.size(0);
  args.ffn = dact_NF.size(1);
  args.activation = kernel_activation(activation);
  args.type = element_type(dact_NF.scalar_type());
  run_kernel("glu_backward", launch_glu_backward, args, dact_NF.device());
}

} // namespace

at::Tensor glu_forward(const at::Tensor& gate_up_in, Activation activation) {
  check_gate_up(gate_up_in);
  const int64_t ffn = gate_up_in.size(1) / 2;
  if (!device::runs_on_cuda(gate_up_in)) {
    return gate_activation(gate_up_in.narrow(1, 0, ffn), activation).mul_(gate_up_in.narrow(1, ffn, ffn));
  }
  const at::Tensor gate_up_N2F = gate_up_in.contiguous();
  at::Tensor act_NF = at::empty({gate_up_N2F.size(0), ffn}, gate_up_N2F.options());
  if (act_NF.numel() > 0) {
    GluArgs args{};
    args.gate_up = gate_up_N2F.const_data_ptr();
    args.act = act_NF.mutable_data_ptr();
    args.rows = act_NF.size(0);
    args.ffn = ffn;
    args.activation = kernel_activation(activation);
    args.type = element_type(act_NF.scalar_type());
    run_kernel("glu_forward", launch_glu_forward, args, act_NF.device());
  }
  return act_NF;
}

Float8Rows glu_forward_float8(const at::Tensor& gate_up_N2F, Activation activation, const at::Tensor& counts) {
  if (!device::runs_on_cuda(gate_up_N2F) || gate_up_N2F.numel() == 0) {
    return float8_rows(glu_forward(gate_up_N2F, activation), {.counts = counts});
  }
  check_gate_up(gate_up_N2F);
  const at::Tensor gate_up = gate_up_N2F.contiguous();
  Float8Rows act = empty_float8_rows(gate_up.size(0), gate_up.size(1) / 2, gate_up.options());
  run_kernel(
      "glu_forward_float8", activation == Activation::kGeGlu ? launch_float8_geglu : launch_float8_swiglu,
      float8_rows_args(gate_up, act, {.counts = counts}), gate_up.device());
  return act;
}

void glu_backward_(at::Tensor& dact_NF, at::Tensor& gate_up_N2F, Activation activation, bool needs_act) {
  check_gate_up(gate_up_N2F);
  const int64_t ffn = gate_up_N2F.size(1) / 2;
  TORCH_CHECK(
      dact_NF.dim() == 2 && dact_NF.size(0) == gate_up_N2F.size(0) && dact_NF.size(1) == ffn &&
          dact_NF.scalar_type() == gate_up_N2F.scalar_type() && dact_NF.is_contiguous() && gate_up_N2F.is_contiguous(),
      "glu: contiguous dact [", gate_up_N2F.size(0), ", ", ffn, "] and gate_up of one dtype are expected, found ",
      dact_NF.sizes(), " of dtype ", dact_NF.scalar_type(), " and ", gate_up_N2F.sizes(), " of dtype ",
      gate_up_N2F.scalar_type());
  if (device::runs_on_cuda(gate_up_N2F)) {
    backward_cuda(dact_NF, gate_up_N2F, activation, needs_act);
    return;
  }
  at::Tensor gate = gate_up_N2F.narrow(1, 0, ffn);
  at::Tensor up = gate_up_N2F.narrow(1, ffn, ffn);
  const at::Tensor gated = gate_activation(gate, activation);
  const at::Tensor dup = at::mul(dact_NF, gated);
  const at::Tensor dgated = at::mul(dact_NF, up);
  if (needs_act) {
    at::mul_out(dact_NF, gated, up);
  }
  up.copy_(dup);
  if (activation == Activation::kGeGlu) {
    at::gelu_backward_out(gate, dgated, gate, "tanh");
  } else {
    at::silu_backward_out(gate, dgated, gate);
  }
}

} // namespace distill::models
