#pragma once

#include "trainer/models/ops/attention.h"

// The fallback for inputs that no fused kernel supports: any device, dtype and head_dim. The scores of one block of
// queries of one segment exist at a time.
namespace distill::models {

AttentionResult attention_math_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options);

void attention_math_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& options, at::Tensor& dq_NAD,
    at::Tensor& dk_NKD, at::Tensor& dv_NKD);

} // namespace distill::models
