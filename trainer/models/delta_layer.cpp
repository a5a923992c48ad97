#include "trainer/models/delta_layer.h"

#include <ATen/ops/empty_like.h>

#include "trainer/models/ops/gated_norm.h"
#include "trainer/models/ops/short_conv.h"

namespace distill::models {
namespace {

at::Tensor conv_part(const DeltaSpec& spec, const at::Tensor& qkvz_NW) {
  return qkvz_NW.narrow(1, 0, spec.conv_channels());
}

at::Tensor gate_part(const DeltaSpec& spec, const at::Tensor& qkvz_NW) {
  return qkvz_NW.narrow(1, spec.conv_channels(), spec.value_width());
}

} // namespace

std::vector<at::Tensor*> DeltaSaved::all() {
  auto& [qkvz, ba, out, written] = *this; // a member that is missing here does not compile
  return {&qkvz, &ba, &out, &written};
}

at::Tensor delta_layer_forward(
    const DeltaContext& context, const DeltaParams& params, SublayerInput& input, const at::Tensor& residual_NH,
    DeltaSaved& saved) {
  const DeltaSpec& spec = context.spec;
  {
    const at::Tensor x_NH = operand_of(params.ba, input).values_NI;
    saved.ba_N2A = multiply_fp32(params.ba, x_NH);
    saved.qkvz_NW = multiply(params.qkvz, operand_of(params.qkvz, x_NH));
  }
  if (!saved.out_NV.defined()) {
    const at::Tensor qkv_NC = short_conv_forward(conv_part(spec, saved.qkvz_NW), params.conv.weight_OI, context.seq);
    DeltaResult result =
        delta_rule_forward(spec, qkv_NC, delta_gates(saved.ba_N2A, params.a_log_A, params.dt_bias_A), context.seq);
    saved.out_NV = std::move(result.out_NV);
    saved.written_NV = std::move(result.written_NV);
  }
  const at::Tensor gated_NV =
      gated_norm_forward(saved.out_NV, gate_part(spec, saved.qkvz_NW), params.gate_norm_D, context.norm_eps);
  const Operand operand = operand_of(params.out, gated_NV);
  return residual_NH.defined() ? multiply_add(params.out, operand, residual_NH) : multiply(params.out, operand);
}

at::Tensor delta_layer_backward(
    const DeltaContext& context, const DeltaParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, DeltaSaved& saved, DeltaParams& grads, at::Tensor& dnorm_H) {
  const DeltaSpec& spec = context.spec;
  const at::Tensor z_NV = gate_part(spec, saved.qkvz_NW);
  SharedGradient of_out, of_qkvz, of_ba;
  if (grads.out.needs_input()) {
    add_weight_gradient(
        params.out, grads.out, dy_NH, gated_norm_forward(saved.out_NV, z_NV, params.gate_norm_D, context.norm_eps),
        &of_out);
  }
  at::Tensor dgated_NV = input_gradient(params.out, dy_NH, &of_out);
  of_out = {};
  dy_NH.reset();
  at::Tensor dqkvz_NW = at::empty_like(saved.qkvz_NW);
  at::Tensor dz_NV = gate_part(spec, dqkvz_NW);
  const at::Tensor dout_NV = gated_norm_backward(
      dgated_NV, saved.out_NV, z_NV, params.gate_norm_D, context.norm_eps, dz_NV, grads.gate_norm_D);
  dgated_NV.reset();
  saved.out_NV.reset();

  at::Tensor dba_N2A;
  {
    const at::Tensor qkv_NC = short_conv_forward(conv_part(spec, saved.qkvz_NW), params.conv.weight_OI, context.seq);
    const DeltaGates gates = delta_gates(saved.ba_N2A, params.a_log_A, params.dt_bias_A);
    DeltaGradients gradients = delta_rule_backward(spec, dout_NV, qkv_NC, gates, saved.written_NV, context.seq);
    saved.written_NV.reset();
    at::Tensor dconv_NC = conv_part(spec, dqkvz_NW);
    short_conv_backward(
        gradients.dqkv_NC, conv_part(spec, saved.qkvz_NW), params.conv.weight_OI, context.seq, dconv_NC,
        grads.conv.weight_OI,
        /*accumulate=*/!grads.conv.is_new);
    dba_N2A =
        delta_gates_backward(
            gates, saved.ba_N2A, params.a_log_A, params.dt_bias_A, gradients.dgates, grads.a_log_A, grads.dt_bias_A)
            .to(dqkvz_NW.scalar_type());
  }
  saved.qkvz_NW.reset();
  saved.ba_N2A.reset();
  if (grads.qkvz.needs_input() || grads.ba.needs_input()) {
    const at::Tensor x_NH = input.value();
    add_weight_gradient(params.qkvz, grads.qkvz, dqkvz_NW, x_NH, &of_qkvz);
    add_weight_gradient(params.ba, grads.ba, dba_N2A, x_NH, &of_ba);
  }
  at::Tensor dinput_NH =
      input_gradient(params.qkvz, dqkvz_NW, &of_qkvz).add_(input_gradient(params.ba, dba_N2A, &of_ba));
  of_qkvz = {};
  return input.gradient(std::move(dinput_NH), dstream_NH, dnorm_H);
}

} // namespace distill::models
