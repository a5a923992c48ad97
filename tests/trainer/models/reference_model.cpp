#include "tests/trainer/models/reference_model.h"

#include <torch/csrc/autograd/autograd.h>

#include <numbers>

namespace distill::models {

at::Tensor reference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  return x / at::sqrt(at::mean(x * x, {-1}, /*keepdim=*/true) + eps) * (weight + offset);
}

at::Tensor reference_rope(const at::Tensor& x_NAD, const at::Tensor& cos_NR, const at::Tensor& sin_NR) {
  const int64_t half = cos_NR.size(1);
  const at::Tensor rotated = x_NAD.slice(2, 0, 2 * half);
  const auto twice = [&](const at::Tensor& table_NR) {
    return at::cat({table_NR, table_NR}, 1).unsqueeze(1).to(x_NAD.scalar_type());
  };
  const at::Tensor turned = at::cat({-rotated.slice(2, half), rotated.slice(2, 0, half)}, 2);
  return at::cat({rotated * twice(cos_NR) + turned * twice(sin_NR), x_NAD.slice(2, 2 * half)}, 2);
}

at::Tensor reference_attention(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const std::vector<int64_t>& boundaries,
    const AttentionOptions& options) {
  const int64_t group = q_NAD.size(1) / k_NKD.size(1);
  const int64_t tokens = q_NAD.size(0);
  at::Tensor allowed = at::zeros({tokens, tokens}, q_NAD.options().dtype(at::kBool));
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    const int64_t begin = boundaries[s];
    const int64_t end = boundaries[s + 1];
    allowed.slice(0, begin, end).slice(1, begin, end).fill_(true);
  }
  allowed = allowed.tril();
  if (options.window) {
    allowed = allowed.triu(1 - *options.window);
  }
  const at::Tensor k = k_NKD.repeat_interleave(group, 1).transpose(0, 1);
  const at::Tensor v = v_NKD.repeat_interleave(group, 1).transpose(0, 1);
  at::Tensor scores = at::matmul(q_NAD.transpose(0, 1), k.transpose(1, 2)) * options.scale;
  if (options.softcap > 0) {
    scores = options.softcap * at::tanh(scores / options.softcap);
  }
  const at::Tensor probs = at::softmax(scores.masked_fill(~allowed, -INFINITY), -1);
  return at::matmul(probs, v).transpose(0, 1).reshape({tokens, -1});
}

at::Tensor reference_glu(const at::Tensor& gate_up_N2F, Activation activation) {
  const auto halves = gate_up_N2F.chunk(2, 1);
  const at::Tensor& gate = halves[0];
  if (activation == Activation::kSwiGlu) {
    return gate * at::sigmoid(gate) * halves[1];
  }
  const at::Tensor inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate.pow(3));
  return 0.5 * gate * (1 + at::tanh(inner)) * halves[1];
}

at::Tensor reference_mlp(const MlpSpec& spec, const MlpParams& params, const at::Tensor& x_NH) {
  const auto one = [&](const at::Tensor& gate_up, const at::Tensor& down) {
    return at::matmul(reference_glu(at::matmul(x_NH, gate_up.t()), spec.activation), down.t());
  };
  if (!spec.experts) {
    return one(params.gate_up.weight_OI, params.down.weight_OI);
  }
  const at::Tensor probs_NE = at::softmax(at::matmul(x_NH, params.router.weight_OI.t()), -1);
  const auto [weights_NK, experts_NK] = probs_NE.topk(spec.experts->per_token, 1);
  const at::Tensor chosen_NK = spec.experts->normalise ? weights_NK / weights_NK.sum(1, /*keepdim=*/true) : weights_NK;
  const int64_t count = spec.experts->count;
  const auto gate_ups = params.gate_up.weight_OI.chunk(count), downs = params.down.weight_OI.chunk(count);
  at::Tensor y_NH = at::zeros_like(x_NH);
  for (int64_t expert = 0; expert < count; ++expert) {
    const at::Tensor weight_N1 = (chosen_NK * experts_NK.eq(expert)).sum(1, /*keepdim=*/true);
    y_NH = y_NH + weight_N1 * one(gate_ups[static_cast<size_t>(expert)], downs[static_cast<size_t>(expert)]);
  }
  if (spec.experts->shared_ffn > 0) {
    const at::Tensor open_N1 = at::sigmoid(at::matmul(x_NH, params.shared_gate.weight_OI.t()));
    y_NH = y_NH + open_N1 * one(params.shared_gate_up.weight_OI, params.shared_down.weight_OI);
  }
  return y_NH;
}

at::Tensor reference_short_conv(
    const at::Tensor& x_NC, const at::Tensor& weight_C1W, const std::vector<int64_t>& boundaries) {
  std::vector<at::Tensor> parts;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    if (boundaries[s + 1] > boundaries[s]) {
      const at::Tensor x = x_NC.slice(0, boundaries[s], boundaries[s + 1]).t().unsqueeze(0);
      const at::Tensor padded = at::constant_pad_nd(x, {weight_C1W.size(2) - 1, 0});
      const std::vector<int64_t> one{1}, zero{0};
      parts.push_back(at::conv1d(
                          padded, weight_C1W, {}, at::IntArrayRef(one), at::IntArrayRef(zero), at::IntArrayRef(one),
                          weight_C1W.size(0))[0]
                          .t());
    }
  }
  const at::Tensor sums = at::cat(parts);
  return sums * at::sigmoid(sums);
}

at::Tensor reference_delta_rule(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay, const at::Tensor& beta,
    const std::vector<int64_t>& boundaries) {
  const auto unit = [](const at::Tensor& x) { return x / at::sqrt((x * x).sum(-1, /*keepdim=*/true) + 1e-6); };
  const at::Tensor queries = unit(q) / std::sqrt(static_cast<double>(q.size(2))), keys = unit(k);
  std::vector<at::Tensor> outputs;
  for (size_t s = 0; s + 1 < boundaries.size(); ++s) {
    at::Tensor state = at::zeros({q.size(1), q.size(2), v.size(2)}, q.options());
    for (int64_t n = boundaries[s]; n < boundaries[s + 1]; ++n) {
      const at::Tensor key = keys[n].unsqueeze(2);
      state = state * at::exp(decay[n]).view({-1, 1, 1});
      const at::Tensor held = (state * key).sum(1, /*keepdim=*/true);
      state = state + key * ((v[n].unsqueeze(1) - held) * beta[n].view({-1, 1, 1}));
      outputs.push_back((state * queries[n].unsqueeze(2)).sum(1));
    }
  }
  return at::stack(outputs);
}

at::Tensor reference_delta(
    const DeltaSpec& spec, const DeltaParams& params, double eps, const std::vector<int64_t>& boundaries,
    const at::Tensor& x_NH) {
  const int64_t tokens = x_NH.size(0), channels = spec.conv_channels(), heads = spec.value_heads;
  const at::Tensor qkvz = at::matmul(x_NH, params.qkvz.weight_OI.t()), ba = at::matmul(x_NH, params.ba.weight_OI.t());
  const at::Tensor qkv = reference_short_conv(qkvz.slice(1, 0, channels), params.conv.weight_OI, boundaries);
  const auto heads_of = [&](int64_t first, int64_t count, int64_t dim) {
    return qkv.slice(1, first, first + count * dim).reshape({tokens, count, dim}).repeat_interleave(heads / count, 1);
  };
  const at::Tensor decay = -at::exp(params.a_log_A) * at::log1p(at::exp(ba.slice(1, heads) + params.dt_bias_A));
  const at::Tensor out = reference_delta_rule(
      heads_of(0, spec.key_heads, spec.key_dim), heads_of(spec.key_width(), spec.key_heads, spec.key_dim),
      heads_of(2 * spec.key_width(), heads, spec.value_dim), decay, at::sigmoid(ba.slice(1, 0, heads)), boundaries);
  const at::Tensor z = qkvz.slice(1, channels).reshape(out.sizes());
  const at::Tensor gated = reference_rms_norm(out, params.gate_norm_D, eps) * z * at::sigmoid(z);
  return at::matmul(gated.flatten(1), params.out.weight_OI.t());
}

namespace {

at::Tensor reference_attention_layer(
    const BlockContext& context, const AttentionParams& params, const at::Tensor& x_NH) {
  const LayerKind& kind = context.kind;
  const AttentionSpec& spec = kind.attention;
  const int64_t tokens = x_NH.size(0);
  at::Tensor qkv = at::matmul(x_NH, params.qkv.weight_OI.t());
  if (params.qkv.bias_O.defined()) {
    qkv = qkv + params.qkv.bias_O;
  }
  const int64_t query = spec.query_rows(), key_value = spec.key_value_width();
  const at::Tensor queries = qkv.narrow(1, 0, query).reshape({tokens, spec.heads, -1});
  at::Tensor q = queries.slice(2, 0, spec.head_dim);
  at::Tensor k = qkv.narrow(1, query, key_value).reshape({tokens, spec.kv_heads, spec.head_dim});
  at::Tensor v = spec.keys_are_values
      ? k
      : qkv.narrow(1, query + key_value, key_value).reshape({tokens, spec.kv_heads, spec.head_dim});
  if (spec.v_norm) {
    v = reference_rms_norm(v, at::ones({spec.head_dim}, v.options()), kind.norm_eps);
  }
  if (spec.qk_norm) {
    const auto norm = [&](const at::Tensor& x_NAD, const at::Tensor& weight) {
      const at::Tensor x = spec.qk_norm->whole ? x_NAD.flatten(1) : x_NAD;
      return reference_rms_norm(x, weight, kind.norm_eps, spec.qk_norm->offset).view(x_NAD.sizes());
    };
    q = norm(q, params.q_norm);
    k = norm(k, params.k_norm);
  }
  if (spec.rope) {
    const RopeAngles& rope = context.ropes.at(static_cast<size_t>(*spec.rope));
    q = reference_rope(q, rope.cos_NR, rope.sin_NR);
    k = reference_rope(k, rope.cos_NR, rope.sin_NR);
    if (rope.query_scale_N.defined()) {
      q = q * rope.query_scale_N.to(q.scalar_type()).view({-1, 1, 1});
    }
  }
  const at::Tensor scores = reference_attention(
      q, k, v, context.seq.segments_host,
      {spec.scale.value_or(1 / std::sqrt(static_cast<double>(spec.head_dim))), spec.window, spec.softcap});
  const at::Tensor out = spec.output_gate ? scores * at::sigmoid(queries.slice(2, spec.head_dim).flatten(1)) : scores;
  return at::matmul(out, params.o.weight_OI.t());
}

} // namespace

at::Tensor reference_block(const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH) {
  const LayerKind& kind = context.kind;
  const auto norm_if = [&](const std::optional<NormSpec>& norm, const at::Tensor& x, const at::Tensor& weight_H) {
    return norm ? reference_rms_norm(x, weight_H, kind.norm_eps, norm->offset) : x;
  };
  // A sublayer's first norm has one weight wherever it stands.
  const auto out_weight = [](const SublayerNorms& norms, const at::Tensor& first, const at::Tensor& second) {
    return norms.before ? second : first;
  };
  const SublayerNorms &outer = kind.attention_norms, &inner = kind.mlp_norms;
  const at::Tensor input = norm_if(outer.before, x_NH, params.attn_norm_H);
  const at::Tensor attention = kind.delta
      ? reference_delta(*kind.delta, params.delta, kind.norm_eps, context.seq.segments_host, input)
      : reference_attention_layer(context, params.attention, input);
  const at::Tensor mid =
      x_NH + norm_if(outer.after, attention, out_weight(outer, params.attn_norm_H, params.attn_out_norm_H));
  const at::Tensor mlp = reference_mlp(kind.mlp, params.mlp, norm_if(inner.before, mid, params.mlp_norm_H));
  const at::Tensor y = mid + norm_if(inner.after, mlp, out_weight(inner, params.mlp_norm_H, params.mlp_out_norm_H));
  return kind.scaled_output ? y * params.output_scale : y;
}

at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().set_requires_grad(true);
}

std::vector<at::Tensor> reference_gradients(
    const at::Tensor& output, const at::Tensor& direction, const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {direction});
}

} // namespace distill::models
