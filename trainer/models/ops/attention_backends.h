#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "trainer/models/ops/attention.h"
#include "trainer/models/sequence.h"

// The libraries behind attention.h: the choice of the one that handles an input, and the calls to it. None of them has
// a kernel for meta tensors, so in a simulated run (device/simulation.h) each call allocates the tensors that the
// library would: results and, during the call, scratch.
namespace distill::models {

enum class AttentionBackend {
  kCudnn,
  kFlash, // FlashAttention-2
  kCpuFlash, // ATen's flash attention for the CPU
  kMath, // matrix products and an exact softmax: attention_math.h
};

// Tells whether a fused kernel computes attention on CUDA in bf16 and fp16; else matrix products do, in all dtypes.
bool has_fused_attention(int64_t head_dim, const AttentionOptions& options);

AttentionBackend attention_backend(const at::Tensor& q_NAD, const SequenceInfo& seq, const AttentionOptions& options);

// Causal attention over whole rows, [B, heads, S, D] as views of [B, S, heads, D]. Returns the output, laid out like q,
// and the log-sum-exp of the scores, fp32.
std::tuple<at::Tensor, at::Tensor> cudnn_attention(
    const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, double scale);
// Returns dq, dk, dv, laid out like q, k, v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& dout_BASD, const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
    const at::Tensor& out_BASD, const at::Tensor& lse, double scale);

// Causal attention within the segments of cu_seqlens, [N, heads, D].
std::tuple<at::Tensor, at::Tensor> flash_attention(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const at::Tensor& cu_seqlens,
    int64_t max_seqlen, const AttentionOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& dout_NAD, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const at::Tensor& out_NAD, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t max_seqlen,
    const AttentionOptions& options);

// Causal attention over whole rows, [B, heads, S, D].
std::tuple<at::Tensor, at::Tensor> cpu_attention(
    const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, double scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_attention_backward(
    const at::Tensor& dout_BASD, const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
    const at::Tensor& out_BASD, const at::Tensor& lse, double scale);

} // namespace distill::models
