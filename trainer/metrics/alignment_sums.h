#pragma once

#include <cstdint>

#include "losses/token_metrics.h"

namespace distill::metrics {

// What is added up, beside the token metrics, over the tokens of a teacher with a tokenizer of its own
// (data/text_alignment.h).
enum AlignmentSum : int64_t {
  kPieces, // places where both models have a boundary
  kCompared, // those of them at which their distributions are compared
  kSpans, // pieces of more than one token on either side
  kSpanTokens, // the student's tokens in spans
  kSpanLoss, // over spans, unweighted
  kDroppedMass, // the teacher's probability of tokens that are no columns, where distributions are compared
  kNumAlignmentSums
};

// The numbers of a teacher: losses::TokenMetric, then AlignmentSum, which are zeros for other teachers.
inline constexpr int64_t kNumSums = int64_t{losses::kNumTokenMetrics} + int64_t{kNumAlignmentSums};

} // namespace distill::metrics
