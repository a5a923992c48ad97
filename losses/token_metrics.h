#pragma once

#include <cstdint>

namespace distill::losses {

// A loss returns these numbers for each token: the first index of a [kNumTokenMetrics, N] tensor (`metrics_MN`).
// p is the teacher's distribution and q the student's, both at the loss's temperature. Losses, divergences and
// entropies are in nats. Every number of an ignored token is 0.
enum TokenMetric : int64_t {
  // token_weight * (hard_weight * (hard + z_loss * lse^2) + soft_weight * soft); gradients are of its sum over tokens
  kLoss,
  kHard, // cross-entropy on the label (with label smoothing), unweighted
  kSoft, // the divergence (with T^2 when asked), unweighted
  kZLoss, // lse^2, unweighted
  kForwardKl, // KL(p || q)
  kReverseKl, // KL(q || p)
  kStudentEntropy, // of q
  kTeacherEntropy, // of p
  kAgreement, // 1 where both distributions have the same arg max (ties: the first column)
  kAccuracy, // 1 where the student's arg max is the label
  kStudentLse, // log-sum-exp of the student's logits at T = 1
  kTeacherLse, // log-sum-exp of the teacher's logits at T = 1
  kTeacherCe, // cross-entropy of the teacher on the label at T = 1, without label smoothing
  kNumTokenMetrics
};

// Returns whether it belongs to MetricSet::kLoss (losses/options.h): the loss, its parts, and the log-sum-exps that
// every loss needs.
constexpr bool is_of_the_loss(int64_t metric) {
  return metric == kLoss || metric == kHard || metric == kSoft || metric == kZLoss || metric == kStudentLse ||
      metric == kTeacherLse;
}

} // namespace distill::losses
