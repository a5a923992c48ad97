#pragma once

#include <ATen/core/Tensor.h>

#include "losses/options.h"

// The fused linear loss head: hidden states and lm_head weights in, per-token losses and gradients out, the logits of
// one chunk of tokens alive at a time.
// Shapes: N tokens, V vocabulary rows, H student hidden size, G teacher hidden size.
namespace distill::losses {

// Rows of LinearHeadOutput::rows_KN. Every row is 0 at ignored tokens.
enum Row : int64_t {
  kLoss, // the whole loss of a token, nats; what the gradient is of
  kHard, // cross-entropy on the label (with label smoothing), unweighted
  kSoft, // the divergence (with T^2 when asked), unweighted
  kZLoss, // lse^2, unweighted
  kForwardKl, // KL(p || q) at the loss's temperature
  kReverseKl, // KL(q || p)
  kStudentEntropy,
  kTeacherEntropy,
  kAgreement, // 1 where the arg max of both agree
  kAccuracy, // 1 where the student's arg max is the label
  kStudentLse, // log-sum-exp of the student's logits at T = 1
  kTeacherLse,
  kNumRows
};

struct LinearHeadInputs {
  at::Tensor hidden_NH; // fp32, bf16 or fp64
  at::Tensor weight_VH; // the same dtype
  at::Tensor bias_V; // undefined: none
  at::Tensor teacher_hidden_NG; // undefined: no teacher, hard loss only
  at::Tensor teacher_weight_VG; // may have another number of rows than weight_VH
  at::Tensor teacher_bias_V; // undefined: none
  at::Tensor targets_N; // int64, kIgnoreIndex: no loss; undefined: every token counts and there is no hard loss
  at::Tensor token_weights_N; // fp32, undefined: 1
  int64_t vocab_size = 0; // columns that exist on both sides; the rest have probability 0. 0: min of both V
  int64_t valid_tokens = -1; // how many targets are not kIgnoreIndex, where known: only those rows are computed
};

// Gradients of grad_scale * sum over tokens of token_weight * loss.
struct LinearHeadGrads {
  at::Tensor hidden_NH; // written (not accumulated); hidden's dtype
  at::Tensor weight_VH; // fp32 (fp64 for fp64 inputs), accumulated into; undefined: frozen lm_head
  at::Tensor bias_V; // likewise; undefined: none
  double grad_scale = 1.0; // usually 1 / (valid tokens of the whole batch over all ranks)
};

struct LinearHeadOutput {
  at::Tensor rows_KN; // fp32 [kNumRows, N] (fp64 for fp64 inputs)
};

// Runs the head; `grads` null: no gradient products, no gradient buffers.
LinearHeadOutput linear_head(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, LinearHeadGrads* grads);

} // namespace distill::losses
