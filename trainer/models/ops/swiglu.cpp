#include "trainer/models/ops/swiglu.h"

namespace distill::models {

at::Tensor swiglu_forward(const at::Tensor& gate_up_N2F) {
  TORCH_CHECK(
      gate_up_N2F.dim() == 2 && gate_up_N2F.size(1) % 2 == 0, "swiglu: [N, 2F] is expected, found ",
      gate_up_N2F.sizes());
  const int64_t ffn = gate_up_N2F.size(1) / 2;
  return at::silu(gate_up_N2F.narrow(1, 0, ffn)).mul_(gate_up_N2F.narrow(1, ffn, ffn));
}

SwigluBackward swiglu_backward(const at::Tensor& dact_NF, const at::Tensor& gate_up_N2F, bool needs_act) {
  const int64_t ffn = gate_up_N2F.size(1) / 2;
  const at::Tensor gate = gate_up_N2F.narrow(1, 0, ffn);
  const at::Tensor up = gate_up_N2F.narrow(1, ffn, ffn);
  SwigluBackward result;
  result.dgate_up_N2F = at::empty_like(gate_up_N2F);
  at::Tensor dgate = result.dgate_up_N2F.narrow(1, 0, ffn);
  at::Tensor dup = result.dgate_up_N2F.narrow(1, ffn, ffn);
  at::Tensor gated = at::silu(gate);
  at::mul_out(dup, dact_NF, gated);
  if (needs_act) {
    result.act_NF = gated.mul_(up);
  }
  at::silu_backward_out(dgate, at::mul(dact_NF, up), gate);
  return result;
}

} // namespace distill::models
