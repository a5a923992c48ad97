#pragma once

#include <ATen/core/Tensor.h>

#include "losses/head/linear_head.h"
#include "losses/spans.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// The loss of a teacher with a tokenizer of its own (docs/vocabulary.md), over all tokens of a micro-batch. N, P, Z as
// AlignedPrediction; V rows of the student's lm_head.
struct AlignedLoss {
  losses::LossOptions loss;
  losses::SpanOptions spans;
  at::Tensor bias_V, teacher_bias_V; // exclude the rows that are no columns; undefined: all rows are columns
};

struct AlignedResult {
  // Metrics of all tokens, [losses::kNumTokenMetrics, N]. The cross-entropies, accuracy and kStudentLse are of all of
  // the student's tokens. What compares two distributions is of the columns, and 0 where they are not compared. kSoft
  // is the divergence there, and where a span begins the weighted one of the span. kTeacherCe is, where a piece begins,
  // the teacher's cross-entropy of all of it, so that its sum is that of the same text.
  at::Tensor metrics_MN;
  at::Tensor alignment_A; // fp64, metrics::AlignmentSum
};

// `prediction`: of all tokens, with their targets. `hidden_NH`, `weight_VH`, `grads`: as for run_loss_head.
AlignedResult run_aligned_head(
    const Prediction& prediction, const at::Tensor& hidden_NH, const at::Tensor& weight_VH, const AlignedLoss& loss,
    const losses::ChunkOptions& chunks, const losses::LinearHeadGrads* grads);

} // namespace distill::trainer
