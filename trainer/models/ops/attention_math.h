#pragma once

#include "trainer/models/ops/attention.h"

// Exact attention through matrix products, for inputs that no fused kernel supports: any device, dtype and head_dim,
// with a softcap of the scores. The scores of one block of queries of one segment exist at a time, those of keys that
// none of these queries sees are not computed, and the backward pass computes them again from the saved log-sum-exp.
// Scores and softmax are fp32 (fp64 for fp64). On CUDA, operands of products are of the inputs' dtype and results fp32,
// as in FlashAttention.
namespace distill::models {

// The number of queries of a block: a power of two, by the number of keys that a query of its segment may see.
int64_t attention_math_queries(int64_t heads, int64_t keys);

AttentionResult attention_math_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options);

void attention_math_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& options, at::Tensor& dq_NAD,
    at::Tensor& dk_NKD, at::Tensor& dv_NKD);

} // namespace distill::models
