#include "tests/trainer/models/reference_model.h"

#include <torch/csrc/autograd/autograd.h>

namespace distill::models {

at::Tensor reference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / at::sqrt(at::mean(x * x, {-1}, /*keepdim=*/true) + eps) * weight;
}

at::Tensor reference_rope(const at::Tensor& x_NAD, const at::Tensor& cos_NR, const at::Tensor& sin_NR) {
  const int64_t half = x_NAD.size(2) / 2;
  const auto twice = [&](const at::Tensor& table_NR) {
    return at::cat({table_NR, table_NR}, 1).unsqueeze(1).to(x_NAD.scalar_type());
  };
  const at::Tensor turned = at::cat({-x_NAD.slice(2, half), x_NAD.slice(2, 0, half)}, 2);
  return x_NAD * twice(cos_NR) + turned * twice(sin_NR);
}

at::Tensor reference_attention(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const std::vector<int64_t>& boundaries) {
  const int64_t group = q_NAD.size(1) / k_NKD.size(1);
  const int64_t tokens = q_NAD.size(0);
  at::Tensor allowed = at::zeros({tokens, tokens}, q_NAD.options().dtype(at::kBool));
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    const int64_t begin = boundaries[s];
    const int64_t end = boundaries[s + 1];
    allowed.slice(0, begin, end).slice(1, begin, end).fill_(true);
  }
  allowed = allowed.tril();
  const at::Tensor k = k_NKD.repeat_interleave(group, 1).transpose(0, 1);
  const at::Tensor v = v_NKD.repeat_interleave(group, 1).transpose(0, 1);
  const at::Tensor scores =
      at::matmul(q_NAD.transpose(0, 1), k.transpose(1, 2)) / std::sqrt(static_cast<double>(q_NAD.size(2)));
  const at::Tensor probs = at::softmax(scores.masked_fill(~allowed, -INFINITY), -1);
  return at::matmul(probs, v).transpose(0, 1).reshape({tokens, -1});
}

at::Tensor reference_swiglu(const at::Tensor& gate_up_N2F) {
  const auto halves = gate_up_N2F.chunk(2, 1);
  return halves[0] * at::sigmoid(halves[0]) * halves[1];
}

at::Tensor reference_block(const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH) {
  const LayerKind& kind = context.kind;
  const AttentionSpec& spec = kind.attention;
  const RopeAngles& rope = context.ropes.at(static_cast<size_t>(*spec.rope));
  const int64_t tokens = x_NH.size(0);
  const auto norm_if = [&](const std::optional<NormSpec>& norm, const at::Tensor& x, const at::Tensor& weight_H) {
    return norm ? reference_rms_norm(x, weight_H, kind.norm_eps) : x;
  };
  // A sublayer's first norm has one weight wherever it stands.
  const auto out_weight = [](const SublayerNorms& norms, const at::Tensor& first, const at::Tensor& second) {
    return norms.before ? second : first;
  };
  const SublayerNorms &outer = kind.attention_norms, &inner = kind.mlp_norms;
  at::Tensor qkv = at::matmul(norm_if(outer.before, x_NH, params.attn_norm_H), params.attention.qkv.weight_OI.t());
  if (params.attention.qkv.bias_O.defined()) {
    qkv = qkv + params.attention.qkv.bias_O;
  }
  const auto parts = qkv.split_with_sizes({spec.query_width(), spec.key_value_width(), spec.key_value_width()}, 1);
  at::Tensor q = parts[0].reshape({tokens, spec.heads, spec.head_dim});
  at::Tensor k = parts[1].reshape({tokens, spec.kv_heads, spec.head_dim});
  const at::Tensor v = parts[2].reshape({tokens, spec.kv_heads, spec.head_dim});
  if (spec.qk_norm) {
    q = reference_rms_norm(q, params.attention.q_norm_D, kind.norm_eps);
    k = reference_rms_norm(k, params.attention.k_norm_D, kind.norm_eps);
  }
  if (spec.scale) { // the reference divides by the square root of head_dim
    q = q * (*spec.scale * std::sqrt(static_cast<double>(spec.head_dim)));
  }
  q = reference_rope(q, rope.cos_NR, rope.sin_NR);
  k = reference_rope(k, rope.cos_NR, rope.sin_NR);
  const at::Tensor attention =
      at::matmul(reference_attention(q, k, v, context.seq.segments_host), params.attention.o.weight_OI.t());
  const at::Tensor mid =
      x_NH + norm_if(outer.after, attention, out_weight(outer, params.attn_norm_H, params.attn_out_norm_H));
  const at::Tensor gate_up =
      at::matmul(norm_if(inner.before, mid, params.mlp_norm_H), params.mlp.gate_up.weight_OI.t());
  const at::Tensor mlp = at::matmul(reference_swiglu(gate_up), params.mlp.down.weight_OI.t());
  return mid + norm_if(inner.after, mlp, out_weight(inner, params.mlp_norm_H, params.mlp_out_norm_H));
}

at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().set_requires_grad(true);
}

std::vector<at::Tensor> reference_gradients(
    const at::Tensor& output, const at::Tensor& direction, const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {direction});
}

} // namespace distill::models
