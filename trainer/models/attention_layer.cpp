#include "trainer/models/attention_layer.h"

#include "trainer/models/ops/attention.h"
#include "trainer/models/ops/head_gate.h"
#include "trainer/models/ops/rms_norm.h"

namespace distill::models {
namespace {

struct QkvViews {
  at::Tensor q_NAD;
  at::Tensor k_NKD;
  at::Tensor v_NKD; // k_NKD itself where keys are values
};

QkvViews split_qkv(const AttentionSpec& spec, const at::Tensor& qkv_NA) {
  const int64_t q_rows = spec.query_rows(), kv_width = spec.key_value_width();
  const auto heads = [&](int64_t first, int64_t width, int64_t head_rows) {
    return qkv_NA.narrow(1, first, width).unflatten(1, {width / head_rows, head_rows}).narrow(2, 0, spec.head_dim);
  };
  return {
      heads(0, q_rows, q_rows / spec.heads), heads(q_rows, kv_width, spec.head_dim),
      heads(q_rows + (spec.keys_are_values ? 0 : kv_width), kv_width, spec.head_dim)};
}

// The gates of the output, [N, heads, D], among the projection's outputs.
at::Tensor gate_of(const AttentionSpec& spec, const at::Tensor& qkv_NA) {
  return qkv_NA.narrow(1, 0, spec.query_rows())
      .unflatten(1, {spec.heads, 2 * spec.head_dim})
      .narrow(2, spec.head_dim, spec.head_dim);
}

// What the projection o reads: attention's output, or that with its gate.
at::Tensor gated_output(const AttentionSpec& spec, const AttentionSaved& saved) {
  return spec.output_gate ? head_gate_forward(saved.out_NQ, gate_of(spec, saved.qkv_NA)) : saved.out_NQ;
}

// The weight of a norm that has none.
at::Tensor unit_weight(const AttentionSpec& spec, const at::Tensor& qkv_NA) {
  return at::ones({spec.head_dim}, qkv_NA.options());
}

// The inputs of attention, given the projection's output, which is rotated in place where nothing is normalised.
// `saved`: receives the norms' statistics.
QkvViews attention_inputs(
    const AttentionContext& context, const AttentionParams& params, const at::Tensor& qkv_NA, AttentionSaved& saved) {
  const AttentionSpec& spec = context.spec;
  QkvViews qkv = split_qkv(spec, qkv_NA);
  if (spec.v_norm) {
    HeadNormResult norm = head_rms_norm_forward(qkv.v_NKD, unit_weight(spec, qkv_NA), context.norm_eps);
    qkv.v_NKD = std::move(norm.y_NAD);
    saved.v_rstd = std::move(norm.rstd);
  }
  if (spec.qk_norm) {
    NormRopeResult result = norm_rope_forward(
        qkv.q_NAD, qkv.k_NKD, params.q_norm, params.k_norm, context.norm_eps, context.rope, spec.qk_norm->offset);
    qkv.q_NAD = std::move(result.q_NAD);
    qkv.k_NKD = std::move(result.k_NKD);
    saved.q_rstd = std::move(result.q_rstd);
    saved.k_rstd = std::move(result.k_rstd);
  }
  return qkv;
}

// Gradient with respect to the fused projection's output (before q/k norm and RoPE), given that of what o reads.
at::Tensor qkv_backward(
    const AttentionContext& context, const AttentionParams& params, at::Tensor dout_NQ, AttentionSaved& saved,
    AttentionParams& grads) {
  const AttentionSpec& spec = context.spec;
  const QkvViews projected = split_qkv(spec, saved.qkv_NA);
  const QkvViews qkv = attention_inputs(context, params, saved.qkv_NA, saved);
  at::Tensor dqkv_NA = at::empty_like(saved.qkv_NA);
  QkvViews grad = split_qkv(spec, dqkv_NA);
  if (spec.output_gate) {
    at::Tensor dgate_NAD = gate_of(spec, dqkv_NA);
    dout_NQ = head_gate_backward(dout_NQ, saved.out_NQ, gate_of(spec, saved.qkv_NA), dgate_NAD);
  }
  if (spec.keys_are_values) {
    grad.v_NKD = at::empty(projected.v_NKD.sizes(), dqkv_NA.options());
  }
  attention_backward(
      dout_NQ, qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, {saved.out_NQ, saved.lse}, context.seq, spec.options(), grad.q_NAD,
      grad.k_NKD, grad.v_NKD, &context.rope);
  if (spec.qk_norm) {
    const double offset = spec.qk_norm->offset;
    head_rms_norm_backward_(grad.q_NAD, projected.q_NAD, saved.q_rstd, params.q_norm, grads.q_norm, offset);
    head_rms_norm_backward_(grad.k_NKD, projected.k_NKD, saved.k_rstd, params.k_norm, grads.k_norm, offset);
  }
  if (spec.v_norm) {
    at::Tensor no_gradient;
    head_rms_norm_backward_(grad.v_NKD, projected.v_NKD, saved.v_rstd, unit_weight(spec, saved.qkv_NA), no_gradient);
  }
  if (spec.keys_are_values) {
    grad.k_NKD.add_(grad.v_NKD);
  }
  return dqkv_NA;
}

} // namespace

std::vector<at::Tensor*> AttentionSaved::all() {
  auto& [qkv, q, k, v, out, softmax] = *this; // a member that is missing here does not compile
  return {&qkv, &q, &k, &v, &out, &softmax};
}

at::Tensor attention_layer_forward(
    const AttentionContext& context, const AttentionParams& params, SublayerInput& input, const at::Tensor& residual_NH,
    AttentionSaved& saved) {
  const AttentionSpec& spec = context.spec;
  saved.qkv_NA = multiply(params.qkv, operand_of(params.qkv, input));
  QkvViews qkv = attention_inputs(context, params, saved.qkv_NA, saved);
  if (!spec.qk_norm) {
    rope_forward_(qkv.q_NAD, qkv.k_NKD, context.rope); // in place, so that the backward pass need not
  }
  if (!saved.out_NQ.defined()) {
    AttentionResult attention = attention_forward(qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, context.seq, spec.options());
    saved.out_NQ = std::move(attention.out_NQ);
    saved.lse = std::move(attention.lse);
  }
  const Operand operand = operand_of(params.o, gated_output(spec, saved));
  return residual_NH.defined() ? multiply_add(params.o, operand, residual_NH) : multiply(params.o, operand);
}

at::Tensor attention_layer_backward(
    const AttentionContext& context, const AttentionParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, AttentionSaved& saved, AttentionParams& grads, at::Tensor& dnorm_H) {
  SharedGradient of_o, of_qkv;
  if (grads.o.needs_input()) {
    add_weight_gradient(params.o, grads.o, dy_NH, gated_output(context.spec, saved), &of_o);
  }
  at::Tensor dout_NQ = input_gradient(params.o, dy_NH, &of_o);
  of_o = {};
  dy_NH.reset();
  const at::Tensor dqkv_NA = qkv_backward(context, params, std::move(dout_NQ), saved, grads);
  saved.qkv_NA.reset();
  saved.out_NQ.reset();
  add_bias_gradient(grads.qkv, dqkv_NA);
  if (grads.qkv.needs_input()) {
    add_weight_gradient(params.qkv, grads.qkv, dqkv_NA, input.value(), &of_qkv);
  }
  at::Tensor dinput_NH = input_gradient(params.qkv, dqkv_NA, &of_qkv);
  of_qkv = {};
  return input.gradient(std::move(dinput_NH), dstream_NH, dnorm_H);
}

} // namespace distill::models
