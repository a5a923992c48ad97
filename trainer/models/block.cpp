#include "trainer/models/block.h"

#include "trainer/models/ops/attention.h"
#include "trainer/models/ops/linear.h"
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

// RMSNorm over head_dim of every head of [N, heads, D]; contiguous result, rstd [N * heads].
at::Tensor head_norm(const at::Tensor& x_NAD, const at::Tensor& weight_D, double eps, at::Tensor& rstd) {
  RmsNormResult result = rms_norm_forward(x_NAD.reshape({-1, x_NAD.size(2)}), weight_D, eps);
  rstd = result.rstd_N;
  return result.y_NH.view(x_NAD.sizes());
}

at::Tensor head_norm_again(const at::Tensor& x_NAD, const at::Tensor& weight_D, const at::Tensor& rstd, double eps) {
  return rms_norm_apply(x_NAD.reshape({-1, x_NAD.size(2)}), rstd, weight_D, eps).view(x_NAD.sizes());
}

// In place on the gradient views of q or k.
void head_norm_backward(
    at::Tensor& dx_NAD, const at::Tensor& x_NAD, const at::Tensor& weight_D, const at::Tensor& rstd,
    at::Tensor& grad_D) {
  const int64_t head_dim = x_NAD.size(2);
  const at::Tensor dx =
      rms_norm_backward(dx_NAD.reshape({-1, head_dim}), x_NAD.reshape({-1, head_dim}), rstd, weight_D, grad_D);
  dx_NAD.copy_(dx.view(x_NAD.sizes()));
}

// Everything but the last matrix product: fills what is kept.
BlockKept forward_to_gate_up(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH) {
  BlockKept kept;
  kept.x_NH = x_NH;
  RmsNormResult attn_norm = rms_norm_forward(x_NH, params.attn_norm_H, config.rms_norm_eps);
  kept.attn_rstd_N = attn_norm.rstd_N;
  kept.qkv_NA = linear_forward(attn_norm.y_NH, params.qkv_AH, params.qkv_bias_A);
  attn_norm.y_NH.reset();

  QkvViews qkv = split_qkv(config, kept.qkv_NA);
  if (config.qk_norm) {
    qkv.q_NAD = head_norm(qkv.q_NAD, params.q_norm_D, config.rms_norm_eps, kept.q_rstd);
    qkv.k_NKD = head_norm(qkv.k_NKD, params.k_norm_D, config.rms_norm_eps, kept.k_rstd);
  }
  rope_forward_(qkv.q_NAD, rope);
  rope_forward_(qkv.k_NKD, rope);
  AttentionResult attention = attention_forward(qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, seq);
  kept.attn_NQ = attention.out_NQ;
  kept.lse = attention.lse;

  kept.mid_NH = linear_residual_forward(kept.attn_NQ, params.o_HQ, x_NH);
  const RmsNormResult mlp_norm = rms_norm_forward(kept.mid_NH, params.mlp_norm_H, config.rms_norm_eps);
  kept.mlp_rstd_N = mlp_norm.rstd_N;
  kept.gate_up_N2F = linear_forward(mlp_norm.y_NH, params.gate_up_2FH);
  return kept;
}

// Returns the gradient with respect to the residual stream after attention.
at::Tensor mlp_backward(
    const BlockParams& params, const at::Tensor& dy_NH, double eps, BlockKept& kept, BlockParams& grads) {
  at::Tensor dact_NF = linear_backward_input(dy_NH, params.down_HF);
  SwigluBackward swiglu = swiglu_backward(dact_NF, kept.gate_up_N2F, /*needs_act=*/grads.down_HF.defined());
  dact_NF.reset();
  kept.gate_up_N2F.reset();
  linear_backward_weight(dy_NH, swiglu.act_NF, grads.down_HF);
  swiglu.act_NF.reset();
  if (grads.gate_up_2FH.defined()) {
    const at::Tensor normed_NH = rms_norm_apply(kept.mid_NH, kept.mlp_rstd_N, params.mlp_norm_H, eps);
    linear_backward_weight(swiglu.dgate_up_N2F, normed_NH, grads.gate_up_2FH);
  }
  const at::Tensor dnormed_NH = linear_backward_input(swiglu.dgate_up_N2F, params.gate_up_2FH);
  swiglu.dgate_up_N2F.reset();
  return rms_norm_backward(
      dnormed_NH, kept.mid_NH, kept.mlp_rstd_N, params.mlp_norm_H, grads.mlp_norm_H, /*dresidual_NH=*/dy_NH);
}

// Gradient with respect to the fused projection's output (before q/k norm and RoPE).
at::Tensor qkv_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dattn_NQ, BlockKept& kept, BlockParams& grads) {
  const QkvViews projected = split_qkv(config, kept.qkv_NA);
  QkvViews qkv = projected;
  if (config.qk_norm) {
    qkv.q_NAD = head_norm_again(projected.q_NAD, params.q_norm_D, kept.q_rstd, config.rms_norm_eps);
    qkv.k_NKD = head_norm_again(projected.k_NKD, params.k_norm_D, kept.k_rstd, config.rms_norm_eps);
    rope_forward_(qkv.q_NAD, rope);
    rope_forward_(qkv.k_NKD, rope);
  }
  at::Tensor dqkv_NA = at::empty_like(kept.qkv_NA);
  QkvViews grad = split_qkv(config, dqkv_NA);
  attention_backward(
      dattn_NQ, qkv.q_NAD, qkv.k_NKD, qkv.v_NKD, {kept.attn_NQ, kept.lse}, seq, grad.q_NAD, grad.k_NKD, grad.v_NKD);
  rope_backward_(grad.q_NAD, rope);
  rope_backward_(grad.k_NKD, rope);
  if (config.qk_norm) {
    head_norm_backward(grad.q_NAD, projected.q_NAD, params.q_norm_D, kept.q_rstd, grads.q_norm_D);
    head_norm_backward(grad.k_NKD, projected.k_NKD, params.k_norm_D, kept.k_rstd, grads.k_norm_D);
  }
  return dqkv_NA;
}

} // namespace

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat) {
  TORCH_CHECK(layout.kind == UnitKind::kBlock, "block_params: '", layout.name, "' is not a decoder block");
  return {
      .attn_norm_H = layout.view(flat, "attn_norm"),
      .qkv_AH = layout.view(flat, "qkv"),
      .qkv_bias_A = layout.view(flat, "qkv_bias"),
      .q_norm_D = layout.view(flat, "q_norm"),
      .k_norm_D = layout.view(flat, "k_norm"),
      .o_HQ = layout.view(flat, "o"),
      .mlp_norm_H = layout.view(flat, "mlp_norm"),
      .gate_up_2FH = layout.view(flat, "gate_up"),
      .down_HF = layout.view(flat, "down"),
  };
}

std::vector<at::Tensor*> BlockKept::tensors() {
  std::vector<at::Tensor*> defined;
  for (at::Tensor* tensor :
       {&x_NH, &attn_rstd_N, &qkv_NA, &q_rstd, &k_rstd, &attn_NQ, &lse, &mid_NH, &mlp_rstd_N, &gate_up_N2F}) {
    if (tensor->defined()) {
      defined.push_back(tensor);
    }
  }
  return defined;
}

int64_t BlockKept::bytes() const {
  int64_t total = 0;
  for (const at::Tensor* tensor : const_cast<BlockKept*>(this)->tensors()) {
    total += static_cast<int64_t>(tensor->nbytes());
  }
  return total;
}

int64_t block_kept_bytes_per_token(const ModelConfig& config, int64_t element_size) {
  const int64_t q_width = config.num_heads * config.head_dim;
  const int64_t kv_width = config.num_kv_heads * config.head_dim;
  const int64_t elements = 2 * config.hidden_size + 2 * q_width + 2 * kv_width + 2 * config.intermediate_size;
  const int64_t statistics = 2 + config.num_heads + (config.qk_norm ? config.num_heads + config.num_kv_heads : 0);
  return elements * element_size + statistics * 4;
}

BlockKept keep_input_only(const at::Tensor& x_NH) {
  BlockKept kept;
  kept.x_NH = x_NH;
  return kept;
}

at::Tensor block_forward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH, BlockKept* kept) {
  TORCH_CHECK(
      !config.sliding_window || seq.max_seqlen <= *config.sliding_window, "the model attends to a window of ",
      *config.sliding_window, " tokens; a sequence of ", seq.max_seqlen, " tokens is longer. Use sequences of at most ",
      *config.sliding_window, " tokens");
  BlockKept all = forward_to_gate_up(config, seq, rope, params, x_NH);
  at::Tensor y_NH = linear_residual_forward(swiglu_forward(all.gate_up_N2F), params.down_HF, all.mid_NH);
  if (kept != nullptr) {
    *kept = std::move(all);
  }
  return y_NH;
}

at::Tensor block_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dy_NH, BlockKept kept, BlockParams& grads) {
  if (kept.input_only()) {
    kept = forward_to_gate_up(config, seq, rope, params, kept.x_NH);
  }
  const at::Tensor dmid_NH = mlp_backward(params, dy_NH, config.rms_norm_eps, kept, grads);
  kept.mid_NH.reset();

  linear_backward_weight(dmid_NH, kept.attn_NQ, grads.o_HQ);
  const at::Tensor dattn_NQ = linear_backward_input(dmid_NH, params.o_HQ);
  const at::Tensor dqkv_NA = qkv_backward(config, seq, rope, params, dattn_NQ, kept, grads);
  kept.qkv_NA.reset();
  kept.attn_NQ.reset();

  linear_backward_bias(dqkv_NA, grads.qkv_bias_A);
  if (grads.qkv_AH.defined()) {
    const at::Tensor normed_NH = rms_norm_apply(kept.x_NH, kept.attn_rstd_N, params.attn_norm_H, config.rms_norm_eps);
    linear_backward_weight(dqkv_NA, normed_NH, grads.qkv_AH);
  }
  const at::Tensor dnormed_NH = linear_backward_input(dqkv_NA, params.qkv_AH);
  return rms_norm_backward(
      dnormed_NH, kept.x_NH, kept.attn_rstd_N, params.attn_norm_H, grads.attn_norm_H, /*dresidual_NH=*/dmid_NH);
}

} // namespace distill::models
