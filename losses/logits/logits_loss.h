#pragma once

#include <ATen/core/Tensor.h>

#include "losses/rows/cuda/launch.h"

// These functions compute the losses on logits that the caller has. Shapes: N tokens, V vocabulary.
namespace distill::losses {

struct LogitsInputs {
  at::Tensor student_NV; // fp32, bf16 or fp64; columns contiguous, rows may be padded
  at::Tensor teacher_NV; // undefined: none; the student's dtype
  at::Tensor targets_N; // int64, kIgnoreIndex: no loss; undefined: no hard loss
  at::Tensor token_weights_N; // fp32 (fp64 for fp64 logits); undefined: 1
};

// Returns the metrics [kNumTokenMetrics, N] (TokenMetric). `gradient_NV`, if defined, gets the gradient of the sum of
// metrics[kLoss] with respect to the student's logits. It is fp32, bf16 or fp64 (fp64 exactly for fp64 logits), and may
// be `student_NV` itself, which is then overwritten. The logits are read once. `saved_SN`, [kNumSavedValues, N] of the
// metrics' dtype, receives the numbers that logits_backward() needs. Throws c10::Error.
at::Tensor logits_loss(
    const LogitsInputs& inputs, const LossOptions& options, const at::Tensor& gradient_NV = {},
    const RowLaunch& launch = {}, const at::Tensor& saved_SN = {});

// Computes the gradient of sum(token_weights_N * loss_N) with respect to the student's logits; loss_N is kLoss of
// logits_loss() with the same options, which saved `saved_SN`. The logits are read once, and nothing is reduced;
// on the CPU, where a row stays in the cache, the row kernel runs again. `gradient_NV` has the logits' dtype and may be
// the student's logits themselves. Throws c10::Error.
void logits_backward(
    const LogitsInputs& inputs, const LossOptions& options, const at::Tensor& saved_SN, const at::Tensor& gradient_NV);

} // namespace distill::losses
