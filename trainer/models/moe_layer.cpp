#include "trainer/models/moe_layer.h"

#include <ATen/ATen.h>

#include "trainer/models/ops/glu.h"

namespace distill::models {
namespace {

// The weight of each visit, sorted by expert: [M, 1].
at::Tensor sorted_weights(const Routing& routing, const ExpertsSpec& experts) {
  return visit_weights(routing, experts.normalise).flatten().index_select(0, routing.visits_M).unsqueeze(1);
}

bool has_shared(const MlpContext& context) {
  return context.spec.experts->shared_ffn > 0;
}

// The shared expert's gated product, times its gate: what its last matrix product reads.
at::Tensor shared_product(const MlpContext& context, const MlpSaved& saved) {
  return glu_forward(saved.shared_gate_up_N2L, context.spec.activation).mul_(saved.shared_gate_N1.sigmoid());
}

// Adds to the gradient of the input, and returns it.
at::Tensor shared_backward(
    const MlpContext& context, const MlpParams& params, const at::Tensor& dy_NH, const at::Tensor& x_NH,
    MlpSaved& saved, MlpParams& grads, at::Tensor dinput_NH) {
  SharedGradient of_down, of_gate_up, of_gate;
  if (grads.shared_down.needs_input()) {
    add_weight_gradient(params.shared_down, grads.shared_down, dy_NH, shared_product(context, saved), &of_down);
  }
  const at::Tensor open_N1 = saved.shared_gate_N1.sigmoid();
  at::Tensor dact_NL = input_gradient(params.shared_down, dy_NH, &of_down); // of the product times the gate
  const at::Tensor dgate_N1 = (dact_NL * glu_forward(saved.shared_gate_up_N2L, context.spec.activation))
                                  .sum(1, /*keepdim=*/true, open_N1.scalar_type())
                                  .mul_(open_N1)
                                  .mul_(1 - open_N1)
                                  .to(x_NH.scalar_type());
  dact_NL.mul_(open_N1);
  glu_backward_(dact_NL, saved.shared_gate_up_N2L, context.spec.activation, /*needs_act=*/false);
  dact_NL.reset();
  const at::Tensor dgate_up_N2L = std::move(saved.shared_gate_up_N2L);
  saved.shared_gate_N1.reset();
  add_weight_gradient(params.shared_gate_up, grads.shared_gate_up, dgate_up_N2L, x_NH, &of_gate_up);
  add_weight_gradient(params.shared_gate, grads.shared_gate, dgate_N1, x_NH, &of_gate);
  dinput_NH.add_(input_gradient(params.shared_gate_up, dgate_up_N2L, &of_gate_up));
  return dinput_NH.add_(input_gradient(params.shared_gate, dgate_N1, &of_gate));
}

} // namespace

void moe_layer_rebuild(const MlpContext& context, const MlpParams& params, SublayerInput& input, MlpSaved& saved) {
  const at::Tensor x_NH = operand_of(params.router, input).values_NI;
  saved.routing = route(multiply_fp32(params.router, x_NH), context.spec.experts->per_token);
  const Operand rows = operand_of_rows(params.gate_up, x_NH, visiting_tokens(saved.routing));
  saved.gate_up_N2F = multiply_groups(params.gate_up, rows, saved.routing.ends_E);
  if (has_shared(context)) {
    saved.shared_gate_N1 = multiply_fp32(params.shared_gate, x_NH);
    saved.shared_gate_up_N2L = multiply(params.shared_gate_up, operand_of(params.shared_gate_up, x_NH));
  }
}

at::Tensor moe_layer_output(
    const MlpContext& context, const MlpParams& params, const MlpSaved& saved, const at::Tensor& residual_NH) {
  const Routing& routing = saved.routing;
  at::Tensor act_MF = glu_forward(saved.gate_up_N2F, context.spec.activation);
  act_MF.mul_(sorted_weights(routing, *context.spec.experts));
  const at::Tensor rows_MH = multiply_groups(params.down, operand_of(params.down, act_MF), routing.ends_E);
  act_MF.reset();
  if (!has_shared(context)) {
    return combine_visits(rows_MH, routing.places_NK, residual_NH);
  }
  const Operand shared = operand_of(params.shared_down, shared_product(context, saved));
  return combine_visits(
      rows_MH, routing.places_NK,
      residual_NH.defined() ? multiply_add(params.shared_down, shared, residual_NH)
                            : multiply(params.shared_down, shared),
      /*in_place=*/true);
}

at::Tensor moe_layer_backward(
    const MlpContext& context, const MlpParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, MlpSaved& saved, MlpParams& grads, at::Tensor& dnorm_H) {
  const ExpertsSpec& experts = *context.spec.experts;
  Routing& routing = saved.routing;
  const at::Tensor tokens_M = visiting_tokens(routing);
  const at::Tensor weights_M1 = sorted_weights(routing, experts);
  SharedGradient of_down, of_gate_up, of_router;
  at::Tensor drows_MH = dy_NH.index_select(0, tokens_M);
  if (!has_shared(context)) {
    dy_NH.reset();
  }
  at::Tensor dact_MF =
      input_gradient_of_groups(params.down, drows_MH, routing.ends_E, &of_down); // of the weighted product
  at::Tensor act_MF = glu_forward(saved.gate_up_N2F, context.spec.activation);
  const at::Tensor dweights_M = (dact_MF * act_MF).sum(1, /*keepdim=*/false, routing.probs_NE.scalar_type());
  if (grads.down.needs_input()) {
    act_MF.mul_(weights_M1);
    add_weight_gradient_of_groups(params.down, grads.down, drows_MH, act_MF, routing.ends_E, &of_down);
  }
  of_down = {};
  act_MF.reset();
  drows_MH.reset();
  dact_MF.mul_(weights_M1);
  glu_backward_(dact_MF, saved.gate_up_N2F, context.spec.activation, /*needs_act=*/false);
  at::Tensor dgate_up_M2F = std::move(saved.gate_up_N2F);
  dact_MF.reset();
  const at::Tensor x_NH = input.value();
  if (grads.gate_up.needs_input()) {
    add_weight_gradient_of_groups(
        params.gate_up, grads.gate_up, dgate_up_M2F, x_NH.index_select(0, tokens_M), routing.ends_E, &of_gate_up);
  }
  at::Tensor dvisits_MH = input_gradient_of_groups(params.gate_up, dgate_up_M2F, routing.ends_E, &of_gate_up);
  of_gate_up = {};
  dgate_up_M2F.reset();

  const at::Tensor dweights_NK = dweights_M.index_select(0, routing.places_NK.flatten()).view_as(routing.places_NK);
  const at::Tensor dlogits_NE =
      routing_backward(
          routing, experts.normalise, dweights_NK,
          context.balance != nullptr ? context.balance->probability_gradient(routing, context.first_token)
                                     : at::Tensor())
          .to(x_NH.scalar_type());
  add_weight_gradient(params.router, grads.router, dlogits_NE, x_NH, &of_router);
  at::Tensor dinput_NH = combine_visits(
      dvisits_MH, routing.places_NK, input_gradient(params.router, dlogits_NE, &of_router), /*in_place=*/true);
  dvisits_MH.reset();
  routing = {};
  if (has_shared(context)) {
    dinput_NH = shared_backward(context, params, dy_NH, x_NH, saved, grads, std::move(dinput_NH));
    dy_NH.reset();
  }
  return input.gradient(std::move(dinput_NH), dstream_NH, dnorm_H);
}

} // namespace distill::models
