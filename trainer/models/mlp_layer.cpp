#include "trainer/models/mlp_layer.h"

#include "trainer/models/moe_layer.h"
#include "trainer/models/ops/glu.h"

namespace distill::models {

std::vector<std::pair<std::string, Projection*>> MlpParams::projections() {
  return {{"router", &router}, {"shared_gate", &shared_gate},       {"gate_up", &gate_up},
          {"down", &down},     {"shared_gate_up", &shared_gate_up}, {"shared_down", &shared_down}};
}

std::vector<at::Tensor*> MlpSaved::all() {
  auto& [gate_up, routing, shared_gate, shared_gate_up] = *this; // a member that is missing here does not compile
  auto& [probs, experts, visits, places, ends] = routing;
  return {&gate_up, &probs, &experts, &visits, &places, &ends, &shared_gate, &shared_gate_up};
}

void mlp_layer_rebuild(const MlpContext& context, const MlpParams& params, SublayerInput& input, MlpSaved& saved) {
  if (context.spec.experts) {
    return moe_layer_rebuild(context, params, input, saved);
  }
  saved.gate_up_N2F = multiply(params.gate_up, operand_of(params.gate_up, input));
}

at::Tensor mlp_layer_output(
    const MlpContext& context, const MlpParams& params, const MlpSaved& saved, const at::Tensor& residual_NH) {
  if (context.spec.experts) {
    return moe_layer_output(context, params, saved, residual_NH);
  }
  const Operand act = operand_of_glu(params.down, saved.gate_up_N2F, context.spec.activation);
  return residual_NH.defined() ? multiply_add(params.down, act, residual_NH) : multiply(params.down, act);
}

at::Tensor mlp_layer_backward(
    const MlpContext& context, const MlpParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, MlpSaved& saved, MlpParams& grads, at::Tensor& dnorm_H) {
  if (context.spec.experts) {
    return moe_layer_backward(context, params, std::move(dy_NH), dstream_NH, input, saved, grads, dnorm_H);
  }
  SharedGradient of_down, of_gate_up;
  at::Tensor act_NF = input_gradient(params.down, dy_NH, &of_down);
  glu_backward_(
      act_NF, saved.gate_up_N2F, context.spec.activation,
      /*needs_act=*/grads.down.needs_input()); // from here on: act again
  at::Tensor dgate_up_N2F = std::move(saved.gate_up_N2F);
  add_weight_gradient(params.down, grads.down, dy_NH, act_NF, &of_down);
  act_NF.reset();
  of_down = {};
  dy_NH.reset();
  if (grads.gate_up.needs_input()) {
    add_weight_gradient(params.gate_up, grads.gate_up, dgate_up_N2F, input.value(), &of_gate_up);
  }
  at::Tensor dinput_NH = input_gradient(params.gate_up, dgate_up_N2F, &of_gate_up);
  of_gate_up = {};
  dgate_up_N2F.reset();
  return input.gradient(std::move(dinput_NH), dstream_NH, dnorm_H);
}

} // namespace distill::models
