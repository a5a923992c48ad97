#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "losses/head/linear_head.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// Runs the loss head over each prediction's tokens. hidden_NH: the student's final hidden states of all tokens, in the
// order of the predictions, which have their targets; weight_VH: its lm_head. `grads`: as for losses::linear_head, of
// all tokens. Returns the metrics of all tokens, [losses::kNumTokenMetrics, N].
at::Tensor run_loss_head(
    std::vector<Prediction>& predictions, const at::Tensor& hidden_NH, const at::Tensor& weight_VH,
    const losses::LossOptions& loss, const losses::ChunkOptions& chunks, const losses::LinearHeadGrads* grads);

} // namespace distill::trainer
