#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/attention_options.h"
#include "trainer/models/ops/rope.h"
#include "trainer/models/sequence.h"

// Causal attention within each segment, grouped queries. N tokens, A query heads, K key/value heads, D head_dim,
// Q = A * D. Inputs are [N, heads, D] views whose last dimension is contiguous.
//
//   CUDA, bf16/fp16, rows of one length   cuDNN (head_dim a multiple of 8, at most 128, rows of 128 tokens or more;
//                                         not with deterministic algorithms or a window)
//   CUDA, bf16/fp16, otherwise            FlashAttention-2 over cu_seqlens (head_dim padded to a multiple of 8)
//   CPU, without a window or softcap      ATen's flash attention for CPU, per segment when packed
//   anything else (fp32 on CUDA, heads    matrix products and an exact softmax, a block of queries at a time
//   of more than 256, a softcap)          (attention_math.h)
//
// A window that no segment is longer than changes nothing, and counts as none.
namespace distill::models {

struct AttentionResult {
  at::Tensor out_NQ;
  at::Tensor lse; // log-sum-exp of the scores, in the shape that the backend's backward pass expects
};

AttentionResult attention_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options);

// Writes the gradients into dq, dk, dv: views shaped like q, k, v, of the same dtype, wholly overwritten. With `rope`,
// the angles by which q and k were rotated, dq and dk are the gradients before the rotation; on CUDA the kernel that
// copies dq and dk into place also rotates them back.
void attention_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& options, at::Tensor& dq_NAD,
    at::Tensor& dk_NKD, at::Tensor& dv_NKD, const RopeAngles* rope = nullptr);

} // namespace distill::models
