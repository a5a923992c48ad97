#include "trainer/models/block.h"

#include "trainer/device/simulation.h"
#include "trainer/models/ops/attention.h"
#include "trainer/models/ops/linear.h"
#include "trainer/models/ops/product_add.h"
#include "trainer/models/ops/rms_norm.h"
#include "trainer/models/ops/swiglu.h"

namespace distill::models {
namespace {

struct QkvViews {
  at::Tensor q_NAD;
  at::Tensor k_NKD;
  at::Tensor v_NKD;
};

QkvViews split_qkv(const ModelConfig& config, const at::Tensor& qkv_NA) {
  const int64_t q_width = config.num_heads * config.head_dim;
  const int64_t kv_width = config.num_kv_heads * config.head_dim;
  const auto heads = [&](int64_t first, int64_t width) {
    return qkv_NA.narrow(1, first, width).unflatten(1, {width / config.head_dim, config.head_dim});
  };
  return {heads(0, q_width), heads(q_width, kv_width), heads(q_width + kv_width, kv_width)};
}

// The products of the forward pass, each in the precision of its weight.
at::Tensor linear_of_norm(
    const at::Tensor& x_NH, const at::Tensor& norm_H, double eps, const at::Tensor& weight_OH,
    const at::Tensor& scale_O, at::Tensor& rstd_N, const at::Tensor& bias_O = {}) {
  if (scale_O.defined()) {
    Float8RmsNormResult norm = rms_norm_forward_float8(x_NH, norm_H, eps);
    rstd_N = std::move(norm.rstd_N);
    return float8_linear(norm.y_NH, {weight_OH, scale_O}, x_NH.scalar_type(), bias_O);
  }
  RmsNormResult norm = rms_norm_forward(x_NH, norm_H, eps);
  rstd_N = std::move(norm.rstd_N);
  return linear_forward(norm.y_NH, weight_OH, bias_O);
}

at::Tensor linear(
    const BlockParams& params, const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& scale_O,
    const at::Tensor& bias_O = {}) {
  if (scale_O.defined()) {
    const Float8Rows x = float8_rows(x_NI, {.counts = counts_of(params.float8_counts, Float8Operand::kActivations)});
    return float8_linear(x, {weight_OI, scale_O}, x_NI.scalar_type(), bias_O);
  }
  return linear_forward(x_NI, weight_OI, bias_O);
}

Float8Rows float8_act(const BlockParams& params, const at::Tensor& gate_up_N2F) {
  return swiglu_forward_float8(gate_up_N2F, counts_of(params.float8_counts, Float8Operand::kActivations));
}

at::Tensor down_of_swiglu(const BlockParams& params, const at::Tensor& gate_up_N2F) {
  if (params.down_scale_H.defined()) {
    return float8_linear(
        float8_act(params, gate_up_N2F), {params.down_HF, params.down_scale_H}, gate_up_N2F.scalar_type());
  }
  return linear_forward(swiglu_forward(gate_up_N2F), params.down_HF);
}

// The gradient of a product's input, in the precision of the weight.
at::Tensor input_gradient(
    const BlockParams& params, const at::Tensor& dy_NO, const at::Tensor& weight_OI, const at::Tensor& scale_O) {
  return scale_O.defined()
      ? float8_linear_backward_input(
            dy_NO, {weight_OI, scale_O}, counts_of(params.float8_counts, Float8Operand::kGradients))
      : linear_backward_input(dy_NO, weight_OI);
}

bool norms_inputs(const ModelConfig& config) {
  return config.norm_placement == NormPlacement::kBeforeSublayers;
}

// The residual stream after attention, with the norm of attention's output. Returns the MLP's input.
at::Tensor norm_and_residual(const BlockParams& params, const at::Tensor& x_NH, double eps, BlockSaved& saved) {
  saved.o_NH = linear(params, saved.attn_NQ, params.o_HQ, params.o_scale_H);
  RmsNormResult norm = rms_norm_forward(saved.o_NH, params.attn_norm_H, eps);
  saved.attn_rstd_N = std::move(norm.rstd_N);
  saved.mid_NH = norm.y_NH.add_(x_NH);
  return saved.mid_NH;
}

// The block's output, with the norm of the MLP's output.
at::Tensor norm_of_down(const BlockParams& params, double eps, BlockSaved& saved) {
  saved.down_NH = down_of_swiglu(params, saved.gate_up_N2F);
  RmsNormResult norm = rms_norm_forward(saved.down_NH, params.mlp_norm_H, eps);
  saved.mlp_rstd_N = std::move(norm.rstd_N);
  return norm.y_NH.add_(saved.mid_NH);
}

// The residual stream after attention, and gate and up of its norm. On CUDA the norm's kernel adds the residual, on the
// CPU the matrix product does.
at::Tensor residual_to_gate_up(const BlockParams& params, const at::Tensor& x_NH, double eps, BlockSaved& saved) {
  const at::Tensor& weight_2FH = params.gate_up_2FH;
  const at::Tensor& scale_2F = params.gate_up_scale_2F;
  if (!device::runs_on_cuda(x_NH) && !params.o_scale_H.defined()) {
    saved.mid_NH = linear_residual_forward(saved.attn_NQ, params.o_HQ, x_NH);
    return linear_of_norm(saved.mid_NH, params.mlp_norm_H, eps, weight_2FH, scale_2F, saved.mlp_rstd_N);
  }
  saved.mid_NH = linear(params, saved.attn_NQ, params.o_HQ, params.o_scale_H);
  if (scale_2F.defined()) {
    Float8RmsNormResult norm = add_rms_norm_forward_float8_(saved.mid_NH, x_NH, params.mlp_norm_H, eps);
    saved.mlp_rstd_N = std::move(norm.rstd_N);
    return float8_linear(norm.y_NH, {weight_2FH, scale_2F}, x_NH.scalar_type());
  }
  RmsNormResult norm = add_rms_norm_forward_(saved.mid_NH, x_NH, params.mlp_norm_H, eps);
  saved.mlp_rstd_N = std::move(norm.rstd_N);
  return linear_forward(norm.y_NH, weight_2FH);
}

// The forward pass up to the last matrix product. Fills everything that the backward pass needs.
BlockSaved forward_to_gate_up(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH) {
  BlockSaved saved;
  saved.x_NH = x_NH;
  if (norms_inputs(config)) {
    saved.qkv_NA = linear_of_norm(
        x_NH, params.attn_norm_H, config.rms_norm_eps, params.qkv_AH, params.qkv_scale_A, saved.attn_rstd_N,
        params.qkv_bias_A);
  } else {
    saved.qkv_NA = linear(params, x_NH, params.qkv_AH, params.qkv_scale_A, params.qkv_bias_A);
  }

  QkvViews qkv = split_qkv(config, saved.qkv_NA);
  if (config.qk_norm) {
    NormRopeResult result =
        norm_rope_forward(qkv.q_NAD, qkv.k_NKD, params.q_norm_D, params.k_norm_D, config.rms_norm_eps, rope);
    qkv.q_NAD = std::move(result.q_NAD);
    qkv.k_NKD = std::move(result.k_NKD);
    saved.q_rstd = std::move(result.q_rstd);
    saved.k_rstd = std::move(result.k_rstd);
  } else {
    rope_forward_(qkv.q_NAD, qkv.k_NKD, rope);
  }
  AttentionResult attention = attention_forward(qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, seq);
  saved.attn_NQ = attention.out_NQ;
  saved.lse = attention.lse;

  if (!norms_inputs(config)) {
    const at::Tensor mid_NH = norm_and_residual(params, x_NH, config.rms_norm_eps, saved);
    saved.gate_up_N2F = linear(params, mid_NH, params.gate_up_2FH, params.gate_up_scale_2F);
    return saved;
  }
  saved.gate_up_N2F = residual_to_gate_up(params, x_NH, config.rms_norm_eps, saved);
  return saved;
}

// Returns the gradient with respect to the residual stream after attention.
at::Tensor mlp_backward(
    const ModelConfig& config, const BlockParams& params, const at::Tensor& dy_NH, BlockSaved& saved,
    BlockParams& grads) {
  at::Tensor ddown_NH = dy_NH;
  if (!norms_inputs(config)) {
    ddown_NH = rms_norm_backward(dy_NH, saved.down_NH, saved.mlp_rstd_N, params.mlp_norm_H, grads.mlp_norm_H);
    saved.down_NH.reset();
  }
  at::Tensor dact_NF = input_gradient(params, ddown_NH, params.down_HF, params.down_scale_H);
  swiglu_backward_(dact_NF, saved.gate_up_N2F, /*needs_act=*/grads.down_HF.defined());
  at::Tensor act_NF = std::move(dact_NF);
  at::Tensor dgate_up_N2F = std::move(saved.gate_up_N2F);
  linear_backward_weight(ddown_NH, act_NF, grads.down_HF, !grads.write_matrices);
  act_NF.reset();
  ddown_NH.reset();
  if (grads.gate_up_2FH.defined()) {
    const at::Tensor input_NH =
        norms_inputs(config) ? rms_norm_apply(saved.mid_NH, saved.mlp_rstd_N, params.mlp_norm_H) : saved.mid_NH;
    linear_backward_weight(dgate_up_N2F, input_NH, grads.gate_up_2FH, !grads.write_matrices);
  }
  at::Tensor dinput_NH = input_gradient(params, dgate_up_N2F, params.gate_up_2FH, params.gate_up_scale_2F);
  dgate_up_N2F.reset();
  if (!norms_inputs(config)) {
    return dinput_NH.add_(dy_NH);
  }
  return rms_norm_backward(
      dinput_NH, saved.mid_NH, saved.mlp_rstd_N, params.mlp_norm_H, grads.mlp_norm_H, /*dresidual_NH=*/dy_NH);
}

// Gradient with respect to the fused projection's output (before q/k norm and RoPE).
at::Tensor qkv_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dattn_NQ, BlockSaved& saved, BlockParams& grads) {
  const QkvViews projected = split_qkv(config, saved.qkv_NA);
  QkvViews qkv = projected;
  if (config.qk_norm) {
    NormRopeResult again = norm_rope_forward(
        projected.q_NAD, projected.k_NKD, params.q_norm_D, params.k_norm_D, config.rms_norm_eps, rope);
    qkv.q_NAD = std::move(again.q_NAD);
    qkv.k_NKD = std::move(again.k_NKD);
  }
  at::Tensor dqkv_NA = at::empty_like(saved.qkv_NA);
  QkvViews grad = split_qkv(config, dqkv_NA);
  attention_backward(
      dattn_NQ, qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, {saved.attn_NQ, saved.lse}, seq, grad.q_NAD, grad.k_NKD, grad.v_NKD,
      &rope);
  if (config.qk_norm) {
    head_rms_norm_backward_(grad.q_NAD, projected.q_NAD, saved.q_rstd, params.q_norm_D, grads.q_norm_D);
    head_rms_norm_backward_(grad.k_NKD, projected.k_NKD, saved.k_rstd, params.k_norm_D, grads.k_norm_D);
  }
  return dqkv_NA;
}

} // namespace

BlockParams block_params(const std::function<at::Tensor(std::string_view name)>& find) {
  return {
      .attn_norm_H = find("attn_norm"),
      .qkv_AH = find("qkv"),
      .qkv_bias_A = find("qkv_bias"),
      .q_norm_D = find("q_norm"),
      .k_norm_D = find("k_norm"),
      .o_HQ = find("o"),
      .mlp_norm_H = find("mlp_norm"),
      .gate_up_2FH = find("gate_up"),
      .down_HF = find("down"),
      .qkv_scale_A = find("qkv.scale"),
      .o_scale_H = find("o.scale"),
      .gate_up_scale_2F = find("gate_up.scale"),
      .down_scale_H = find("down.scale"),
  };
}

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat) {
  TORCH_CHECK(layout.kind == UnitKind::kBlock, "block_params: '", layout.name, "' is not a decoder block");
  return block_params([&](std::string_view name) { return layout.view(flat, name); });
}

std::array<bool, kProducts> float8_weights(const BlockParams& params) {
  return {
      params.qkv_scale_A.defined(), params.o_scale_H.defined(), params.gate_up_scale_2F.defined(),
      params.down_scale_H.defined()};
}

std::vector<at::Tensor*> BlockSaved::all() {
  // A member that is missing in this list does not compile: a structured binding names every member.
  auto& [x, attn_rstd, qkv, q, k, attn, softmax, mid, mlp_rstd, gate_up, o, down] = *this;
  return {&x, &attn_rstd, &qkv, &q, &k, &attn, &softmax, &mid, &mlp_rstd, &gate_up, &o, &down};
}

std::vector<at::Tensor*> BlockSaved::tensors() {
  std::vector<at::Tensor*> defined;
  for (at::Tensor* tensor : all()) {
    if (tensor->defined()) {
      defined.push_back(tensor);
    }
  }
  return defined;
}

int64_t BlockSaved::bytes() const {
  int64_t total = 0;
  for (const at::Tensor* tensor : const_cast<BlockSaved*>(this)->tensors()) {
    total += static_cast<int64_t>(tensor->nbytes());
  }
  return total;
}

BlockSaved save_input_only(const at::Tensor& x_NH) {
  BlockSaved saved;
  saved.x_NH = x_NH;
  return saved;
}

at::Tensor block_forward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH, BlockSaved* saved) {
  TORCH_CHECK(
      !config.sliding_window || seq.max_seqlen <= *config.sliding_window, "the model attends to a window of ",
      *config.sliding_window, " tokens; a sequence of ", seq.max_seqlen, " tokens is longer. Use sequences of at most ",
      *config.sliding_window, " tokens");
  BlockSaved all = forward_to_gate_up(config, seq, rope, params, x_NH);
  if (!norms_inputs(config)) {
    at::Tensor y_NH = norm_of_down(params, config.rms_norm_eps, all);
    if (saved != nullptr) {
      *saved = std::move(all);
    }
    return y_NH;
  }
  if (params.down_scale_H.defined()) {
    const Float8Rows act = float8_act(params, all.gate_up_N2F);
    at::Tensor y_NH = saved == nullptr ? all.mid_NH : at::empty_like(all.mid_NH);
    product_add_out(act, {params.down_HF, params.down_scale_H}, all.mid_NH, y_NH);
    if (saved != nullptr) {
      *saved = std::move(all);
    }
    return y_NH;
  }
  const at::Tensor act_NF = swiglu_forward(all.gate_up_N2F);
  if (saved == nullptr) { // nothing else reads the residual stream, so the product is added to it in place
    return linear_residual_forward_(act_NF, params.down_HF, all.mid_NH);
  }
  at::Tensor y_NH = linear_residual_forward(act_NF, params.down_HF, all.mid_NH);
  *saved = std::move(all);
  return y_NH;
}

at::Tensor block_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dy_NH, BlockSaved saved, BlockParams& grads) {
  if (saved.input_only()) {
    saved = forward_to_gate_up(config, seq, rope, params, saved.x_NH);
    if (!norms_inputs(config)) {
      norm_of_down(params, config.rms_norm_eps, saved);
    }
  }
  const at::Tensor dmid_NH = mlp_backward(config, params, dy_NH, saved, grads);
  saved.mid_NH.reset();

  at::Tensor do_NH = dmid_NH;
  if (!norms_inputs(config)) {
    do_NH = rms_norm_backward(dmid_NH, saved.o_NH, saved.attn_rstd_N, params.attn_norm_H, grads.attn_norm_H);
    saved.o_NH.reset();
  }
  linear_backward_weight(do_NH, saved.attn_NQ, grads.o_HQ, !grads.write_matrices);
  const at::Tensor dattn_NQ = input_gradient(params, do_NH, params.o_HQ, params.o_scale_H);
  do_NH.reset();
  const at::Tensor dqkv_NA = qkv_backward(config, seq, rope, params, dattn_NQ, saved, grads);
  saved.qkv_NA.reset();
  saved.attn_NQ.reset();

  linear_backward_bias(dqkv_NA, grads.qkv_bias_A);
  if (grads.qkv_AH.defined()) {
    const at::Tensor input_NH =
        norms_inputs(config) ? rms_norm_apply(saved.x_NH, saved.attn_rstd_N, params.attn_norm_H) : saved.x_NH;
    linear_backward_weight(dqkv_NA, input_NH, grads.qkv_AH, !grads.write_matrices);
  }
  at::Tensor dinput_NH = input_gradient(params, dqkv_NA, params.qkv_AH, params.qkv_scale_A);
  if (!norms_inputs(config)) {
    return dinput_NH.add_(dmid_NH);
  }
  return rms_norm_backward(
      dinput_NH, saved.x_NH, saved.attn_rstd_N, params.attn_norm_H, grads.attn_norm_H, /*dresidual_NH=*/dmid_NH);
}

} // namespace distill::models
