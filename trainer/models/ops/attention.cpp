#include "trainer/models/ops/attention.h"

#include "trainer/models/ops/attention_backends.h"
#include "trainer/models/ops/attention_math.h"

namespace distill::models {
namespace {

// [N, heads, D] or [N, heads * D] seen as [B, heads, S, D]; no copy.
at::Tensor as_bhsd(const at::Tensor& x, const SequenceInfo& seq, int64_t heads) {
  return x.view({seq.batch, seq.seq_len, heads, -1}).transpose(1, 2);
}

at::Tensor from_bhsd(const at::Tensor& x_BASD) {
  const at::Tensor x_BSAD = x_BASD.transpose(1, 2);
  return x_BSAD.reshape({x_BSAD.size(0) * x_BSAD.size(1), -1});
}

AttentionResult cudnn_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq, double scale) {
  const auto [out, lse] = cudnn_attention(
      as_bhsd(q_NAD, seq, q_NAD.size(1)), as_bhsd(k_NKD, seq, k_NKD.size(1)), as_bhsd(v_NKD, seq, v_NKD.size(1)),
      scale);
  return {from_bhsd(out), lse};
}

// Views [N, heads, D].
struct Gradients {
  at::Tensor dq_NAD, dk_NKD, dv_NKD;
};

Gradients cudnn_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, double scale) {
  const int64_t heads = q_NAD.size(1);
  const auto [dq, dk, dv] = cudnn_attention_backward(
      as_bhsd(dout_NQ.contiguous(), seq, heads), as_bhsd(q_NAD, seq, heads), as_bhsd(k_NKD, seq, k_NKD.size(1)),
      as_bhsd(v_NKD, seq, v_NKD.size(1)), as_bhsd(saved.out_NQ, seq, heads), saved.lse, scale);
  const auto by_token = [](const at::Tensor& x_BASD, const at::Tensor& like) {
    return x_BASD.transpose(1, 2).reshape(like.sizes());
  };
  return {by_token(dq, q_NAD), by_token(dk, k_NKD), by_token(dv, v_NKD)};
}

// FlashAttention-2 needs a head_dim that is a multiple of 8; padding with zeros changes neither scores nor outputs.
at::Tensor pad_head_dim(const at::Tensor& x_NAD) {
  const int64_t missing = (8 - x_NAD.size(2) % 8) % 8;
  return missing == 0 ? x_NAD : at::constant_pad_nd(x_NAD, {0, missing});
}

// One-token segments with grouped queries take a path with another layout of lse; a bound of 2 avoids it.
int64_t flash_max_seqlen(const SequenceInfo& seq) {
  return std::max<int64_t>(seq.max_seqlen, 2);
}

AttentionResult flash_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options) {
  const auto [out, lse] = flash_attention(
      pad_head_dim(q_NAD), pad_head_dim(k_NKD), pad_head_dim(v_NKD), seq.cu_seqlens, flash_max_seqlen(seq), options);
  return {out.narrow(2, 0, q_NAD.size(2)).reshape({q_NAD.size(0), -1}), lse};
}

Gradients flash_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& options) {
  const int64_t head_dim = q_NAD.size(2);
  const auto [dq, dk, dv] = flash_attention_backward(
      pad_head_dim(dout_NQ.reshape(q_NAD.sizes())), pad_head_dim(q_NAD), pad_head_dim(k_NKD), pad_head_dim(v_NKD),
      pad_head_dim(saved.out_NQ.view(q_NAD.sizes())), saved.lse, seq.cu_seqlens, flash_max_seqlen(seq), options);
  return {dq.narrow(2, 0, head_dim), dk.narrow(2, 0, head_dim), dv.narrow(2, 0, head_dim)};
}

void store(const Gradients& from, const RopeAngles* rope, at::Tensor& dq_NAD, at::Tensor& dk_NKD, at::Tensor& dv_NKD) {
  if (rope != nullptr) {
    rope_backward(from.dq_NAD, from.dk_NKD, dq_NAD, dk_NKD, *rope);
  } else {
    dq_NAD.copy_(from.dq_NAD);
    dk_NKD.copy_(from.dk_NKD);
  }
  dv_NKD.copy_(from.dv_NKD);
}

// Segment [begin, begin + length) as a batch of one; a dense batch is one call over all rows.
struct CpuSpan {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t batch = 1;
};

std::vector<CpuSpan> cpu_spans(const SequenceInfo& seq) {
  if (!seq.packed) {
    return {{0, seq.seq_len, seq.batch}};
  }
  std::vector<CpuSpan> spans;
  for (size_t s = 0; s + 1 < seq.segments_host.size(); ++s) {
    const int64_t length = seq.segments_host[s + 1] - seq.segments_host[s];
    if (length > 0) {
      spans.push_back({seq.segments_host[s], length, 1});
    }
  }
  return spans;
}

at::Tensor span_bhsd(const at::Tensor& x_NAD, const CpuSpan& span) {
  return x_NAD.narrow(0, span.begin, span.batch * span.length)
      .view({span.batch, span.length, x_NAD.size(1), x_NAD.size(2)})
      .transpose(1, 2);
}

at::Tensor span_lse(const at::Tensor& lse_NA, const CpuSpan& span) {
  return lse_NA.narrow(0, span.begin, span.batch * span.length)
      .view({span.batch, span.length, lse_NA.size(1)})
      .transpose(1, 2);
}

AttentionResult cpu_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq, double scale) {
  const auto lse_dtype = q_NAD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor out_NAD = at::empty(q_NAD.sizes(), q_NAD.options());
  at::Tensor lse_NA = at::empty({q_NAD.size(0), q_NAD.size(1)}, q_NAD.options().dtype(lse_dtype));
  for (const CpuSpan& span : cpu_spans(seq)) {
    const auto [out, lse] =
        cpu_attention(span_bhsd(q_NAD, span), span_bhsd(k_NKD, span), span_bhsd(v_NKD, span), scale);
    span_bhsd(out_NAD, span).copy_(out);
    span_lse(lse_NA, span).copy_(lse);
  }
  return {out_NAD.view({q_NAD.size(0), -1}), lse_NA};
}

void cpu_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, double scale, at::Tensor& dq_NAD, at::Tensor& dk_NKD,
    at::Tensor& dv_NKD) {
  const at::Tensor dout_NAD = dout_NQ.contiguous().view(q_NAD.sizes());
  const at::Tensor out_NAD = saved.out_NQ.view(q_NAD.sizes());
  for (const CpuSpan& span : cpu_spans(seq)) {
    const auto [dq, dk, dv] = cpu_attention_backward(
        span_bhsd(dout_NAD, span), span_bhsd(q_NAD, span), span_bhsd(k_NKD, span), span_bhsd(v_NKD, span),
        span_bhsd(out_NAD, span), span_lse(saved.lse, span), scale);
    span_bhsd(dq_NAD, span).copy_(dq);
    span_bhsd(dk_NKD, span).copy_(dk);
    span_bhsd(dv_NKD, span).copy_(dv);
  }
}

void check_inputs(const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq) {
  TORCH_CHECK(
      q_NAD.dim() == 3 && k_NKD.dim() == 3 && k_NKD.sizes() == v_NKD.sizes() && q_NAD.size(2) == k_NKD.size(2),
      "attention: q [N, heads, D] and k, v [N, kv_heads, D] are expected, found ", q_NAD.sizes(), ", ", k_NKD.sizes(),
      ", ", v_NKD.sizes());
  TORCH_CHECK(
      q_NAD.size(0) == seq.batch * seq.seq_len && k_NKD.size(0) == q_NAD.size(0),
      "attention: batch * seq_len = ", seq.batch * seq.seq_len, " tokens are expected, found ", q_NAD.size(0), " and ",
      k_NKD.size(0));
  TORCH_CHECK(
      k_NKD.size(1) > 0 && q_NAD.size(1) % k_NKD.size(1) == 0,
      "attention: query heads must be a multiple of key/value heads, found ", q_NAD.size(1), " and ", k_NKD.size(1));
  TORCH_CHECK(
      seq.segments_host.size() >= 2 && seq.segments_host.front() == 0 && seq.segments_host.back() == q_NAD.size(0),
      "attention: segments from 0 to ", q_NAD.size(0), " are expected");
}

// The options without a window that no segment is longer than.
AttentionOptions effective(AttentionOptions options, const SequenceInfo& seq) {
  if (options.window && *options.window >= seq.max_seqlen) {
    options.window.reset();
  }
  return options;
}

} // namespace

AttentionResult attention_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& given) {
  check_inputs(q_NAD, k_NKD, v_NKD, seq);
  const AttentionOptions options = effective(given, seq);
  switch (attention_backend(q_NAD, seq, options)) {
    case AttentionBackend::kCudnn:
      return cudnn_forward(q_NAD, k_NKD, v_NKD, seq, options.scale);
    case AttentionBackend::kFlash:
      return flash_forward(q_NAD, k_NKD, v_NKD, seq, options);
    case AttentionBackend::kCpuFlash:
      return cpu_forward(q_NAD, k_NKD, v_NKD, seq, options.scale);
    case AttentionBackend::kMath:
      break;
  }
  return attention_math_forward(q_NAD, k_NKD, v_NKD, seq, options);
}

void attention_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& given, at::Tensor& dq_NAD,
    at::Tensor& dk_NKD, at::Tensor& dv_NKD, const RopeAngles* rope) {
  check_inputs(q_NAD, k_NKD, v_NKD, seq);
  const AttentionOptions options = effective(given, seq);
  switch (attention_backend(q_NAD, seq, options)) {
    case AttentionBackend::kCudnn:
      return store(
          cudnn_backward(dout_NQ, q_NAD, k_NKD, v_NKD, saved, seq, options.scale), rope, dq_NAD, dk_NKD, dv_NKD);
    case AttentionBackend::kFlash:
      return store(flash_backward(dout_NQ, q_NAD, k_NKD, v_NKD, saved, seq, options), rope, dq_NAD, dk_NKD, dv_NKD);
    case AttentionBackend::kCpuFlash:
      cpu_backward(dout_NQ, q_NAD, k_NKD, v_NKD, saved, seq, options.scale, dq_NAD, dk_NKD, dv_NKD);
      break;
    case AttentionBackend::kMath:
      attention_math_backward(dout_NQ, q_NAD, k_NKD, v_NKD, saved, seq, options, dq_NAD, dk_NKD, dv_NKD);
      break;
  }
  if (rope != nullptr) {
    rope_backward_(dq_NAD, dk_NKD, *rope);
  }
}

} // namespace distill::models
