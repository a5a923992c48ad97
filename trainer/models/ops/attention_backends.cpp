#include "trainer/models/ops/attention_backends.h"

#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"

namespace distill::models {
namespace {

constexpr int64_t kCudnnMaxHeadDim = 128;
constexpr int64_t kCudnnMinLength = 128;
constexpr int64_t kFlashMaxHeadDim = 256;

at::Tensor floats(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

// [B, heads, S, D] with the memory layout [B, S, heads, D], which cuDNN gives its results when its inputs have it.
at::Tensor empty_by_token(const at::Tensor& like_BASD) {
  return at::empty(like_BASD.transpose(1, 2).sizes(), like_BASD.options()).transpose(1, 2);
}

// Scratch of the backward passes of cuDNN and FlashAttention-2: fp32 sums of dq, whose rows are padded to a multiple of
// 32 elements, and one number for each row. Rows are those of each head.
struct BackwardScratch {
  at::Tensor dq_sums;
  at::Tensor row_sums;

  BackwardScratch(const at::Tensor& q, int64_t rows, int64_t sums)
      : dq_sums(floats({sums, rows, (q.size(-1) + 31) / 32 * 32}, q)), row_sums(floats({rows}, q)) {}
};

// FlashAttention-2 keeps 128 further rows for each segment. With deterministic algorithms it has a sum for each thread
// block that works on the same rows at the same time, instead of adding to one with atomics
// (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_varlen_bwd).
BackwardScratch flash_scratch(const at::Tensor& q_NAD, int64_t segments) {
  const int64_t heads = q_NAD.size(1), units = segments * heads;
  const int64_t blocks = (device::kSimulatedMultiprocessors + units - 1) / units;
  return {q_NAD, (q_NAD.size(0) + 128 * segments) * heads, at::globalContext().deterministicAlgorithms() ? blocks : 1};
}

// ATen's flash attention for the CPU works on tiles of queries and keys, one set of buffers for each thread
// (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
struct CpuTiles {
  int64_t queries = 0;
  int64_t keys = 0;

  explicit CpuTiles(int64_t length)
      : queries(std::min<int64_t>(
            length,
            length >= 768       ? 256
                : length >= 192 ? 64
                                : 32)),
        keys(std::min<int64_t>(length, 512)) {}
};

// FlashAttention-2 counts the tokens before a token; the token itself is always seen.
std::optional<int64_t> window_left(const AttentionOptions& options) {
  return options.window ? std::optional(*options.window - 1) : std::nullopt;
}

} // namespace

bool has_fused_attention(int64_t head_dim, const AttentionOptions& options) {
  return head_dim <= kFlashMaxHeadDim && options.softcap == 0;
}

AttentionBackend attention_backend(const at::Tensor& q_NAD, const SequenceInfo& seq, const AttentionOptions& options) {
  const int64_t head_dim = q_NAD.size(2);
  const bool half = q_NAD.scalar_type() == at::kBFloat16 || q_NAD.scalar_type() == at::kHalf;
  if (device::runs_on_cpu(q_NAD)) {
    return options.window || options.softcap > 0 ? AttentionBackend::kMath : AttentionBackend::kCpuFlash;
  }
  if (!device::runs_on_cuda(q_NAD) || !half || !has_fused_attention(head_dim, options)) {
    return AttentionBackend::kMath;
  }
  // cuDNN's backward pass adds with atomics.
  const bool deterministic = at::globalContext().deterministicAlgorithms();
  if (!seq.packed && !options.window && !deterministic && head_dim % 8 == 0 && head_dim <= kCudnnMaxHeadDim &&
      seq.seq_len >= kCudnnMinLength) {
    return AttentionBackend::kCudnn;
  }
  return AttentionBackend::kFlash;
}

std::tuple<at::Tensor, at::Tensor> cudnn_attention(
    const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, double scale) {
  if (q_BASD.is_meta()) {
    at::Tensor out = empty_by_token(q_BASD);
    return {std::move(out), floats({q_BASD.size(0), q_BASD.size(1), q_BASD.size(2), 1}, q_BASD)};
  }
  const auto result = at::_scaled_dot_product_cudnn_attention(
      q_BASD, k_BKSD, v_BKSD, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_attention_backward(
    const at::Tensor& dout_BASD, const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
    const at::Tensor& out_BASD, const at::Tensor& lse, double scale) {
  if (q_BASD.is_meta()) {
    std::tuple gradients{empty_by_token(q_BASD), empty_by_token(k_BKSD), empty_by_token(v_BKSD)};
    const BackwardScratch scratch(q_BASD, q_BASD.numel() / q_BASD.size(-1), 1);
    return gradients;
  }
  // The seed and offset of dropout, which are never read without dropout.
  const at::Tensor unused = at::empty({}, q_BASD.options().dtype(at::kLong));
  const int64_t seq_len = q_BASD.size(2);
  return at::_scaled_dot_product_cudnn_attention_backward(
      dout_BASD, q_BASD, k_BKSD, v_BKSD, out_BASD, lse, unused, unused, /*attn_bias=*/{}, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, seq_len, seq_len, /*dropout_p=*/0.0, /*is_causal=*/true, scale);
}

std::tuple<at::Tensor, at::Tensor> flash_attention(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const at::Tensor& cu_seqlens,
    int64_t max_seqlen, const AttentionOptions& options) {
  if (q_NAD.is_meta()) {
    at::Tensor out = at::empty(q_NAD.sizes(), q_NAD.options());
    return {std::move(out), floats({q_NAD.size(1), q_NAD.size(0)}, q_NAD)};
  }
  const auto result = at::_flash_attention_forward(
      q_NAD, k_NKD, v_NKD, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, /*dropout_p=*/0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, options.scale, window_left(options), /*window_size_right=*/std::nullopt);
  return {std::get<0>(result), std::get<1>(result)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& dout_NAD, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const at::Tensor& out_NAD, const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t max_seqlen,
    const AttentionOptions& options) {
  if (q_NAD.is_meta()) {
    const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    std::tuple gradients{like(q_NAD), like(k_NKD), like(v_NKD)};
    const BackwardScratch scratch = flash_scratch(q_NAD, cu_seqlens.size(0) - 1);
    at::Tensor expanded_k, expanded_v; // gradients for each query head, summed over the heads of a group at the end
    if (k_NKD.size(1) != q_NAD.size(1)) {
      expanded_k = like(q_NAD);
      expanded_v = like(q_NAD);
    }
    return gradients;
  }
  const at::Tensor rng_state = at::empty({2}, q_NAD.options().dtype(at::kUInt64));
  const at::Tensor unused = at::empty({}, q_NAD.options().dtype(at::kUInt64));
  return at::_flash_attention_backward(
      dout_NAD, q_NAD, k_NKD, v_NKD, out_NAD, lse, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, /*dropout_p=*/0.0,
      /*is_causal=*/true, rng_state, unused, options.scale, window_left(options), /*window_size_right=*/std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> cpu_attention(
    const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, double scale) {
  if (q_BASD.is_meta()) {
    at::Tensor out = empty_by_token(q_BASD);
    at::Tensor lse = floats({q_BASD.size(0), q_BASD.size(1), q_BASD.size(2)}, q_BASD);
    const CpuTiles tiles(q_BASD.size(2));
    floats({at::get_num_threads(), tiles.queries * (tiles.keys + 2 + q_BASD.size(3))}, q_BASD);
    return {std::move(out), std::move(lse)};
  }
  return at::_scaled_dot_product_flash_attention_for_cpu(
      q_BASD, k_BKSD, v_BKSD, /*dropout_p=*/0.0, /*is_causal=*/true, /*attn_mask=*/{}, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_attention_backward(
    const at::Tensor& dout_BASD, const at::Tensor& q_BASD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
    const at::Tensor& out_BASD, const at::Tensor& lse, double scale) {
  if (q_BASD.is_meta()) {
    std::tuple gradients{empty_by_token(q_BASD), empty_by_token(k_BKSD), empty_by_token(v_BKSD)};
    const CpuTiles tiles(q_BASD.size(2));
    floats({at::get_num_threads(), 2 * tiles.queries * tiles.keys}, q_BASD);
    return gradients;
  }
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      dout_BASD, q_BASD, k_BKSD, v_BKSD, out_BASD, lse, /*dropout_p=*/0.0, /*is_causal=*/true, /*attn_mask=*/{}, scale);
}

} // namespace distill::models
