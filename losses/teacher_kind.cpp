#include "losses/teacher_kind.h"

#include <absl/strings/str_format.h>

namespace distill::losses {

namespace {

using enum MetricQuality;

constexpr std::array kOfTheTeacher{kSoft, kForwardKl, kReverseKl, kTeacherEntropy, kAgreement, kTeacherLse, kTeacherCe};

bool has_soft_term(const LossOptions& options) {
  return options.divergence != Divergence::kNone && options.soft_weight > 0;
}

// Returns the qualities where all metrics are asked for.
MetricQualities all_metrics(TeacherKind kind, const LossOptions& options) {
  MetricQualities quality{};
  quality.fill(kExact);
  if (kind == TeacherKind::kHidden) {
    return quality;
  }
  for (const TokenMetric metric : kOfTheTeacher) {
    quality[metric] = kUnavailable;
  }
  if (kind == TeacherKind::kTopK) {
    for (const TokenMetric metric : {kSoft, kForwardKl, kReverseKl, kTeacherEntropy}) {
      quality[metric] = kLowerBound;
    }
    quality[kAgreement] = kExact;
    quality[kTeacherCe] = options.temperature == 1 ? kLowerBound : kUnavailable;
  } else if (kind == TeacherKind::kSampled) {
    quality[kSoft] = kEstimate;
  }
  if (has_soft_term(options)) {
    quality[kLoss] = quality[kSoft];
  }
  return quality;
}

} // namespace

MetricQualities available_metrics(TeacherKind kind, const LossOptions& options) {
  MetricQualities quality = all_metrics(kind, options);
  if (options.metrics == MetricSet::kLoss && !is_sparse(kind)) {
    for (int64_t metric = 0; metric < kNumTokenMetrics; ++metric) {
      quality[metric] = is_of_the_loss(metric) ? quality[metric] : kUnavailable;
    }
  }
  return quality;
}

absl::Status validate_for_teacher(const LossOptions& options, TeacherKind kind, double teacher_temperature) {
  if (!is_sparse(kind)) {
    return absl::OkStatus();
  }
  if (options.temperature != teacher_temperature) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "temperature: the teacher's kind %s was captured at temperature %g, found %g; another temperature needs the "
        "whole distribution (kind hidden)",
        base::enum_name(kind), teacher_temperature, options.temperature));
  }
  const Divergence divergence = effective_divergence(options);
  if (kind == TeacherKind::kSampled && divergence != Divergence::kForwardKl && divergence != Divergence::kNone) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "divergence: samples of the teacher estimate forward_kl only (as the soft cross-entropy), found %s; reverse KL, "
        "JSD, skew KLs and total variation are not linear in the teacher's probabilities and need the kind topk (lower "
        "bounds) or hidden (exact)",
        base::enum_name(options.divergence)));
  }
  return absl::OkStatus();
}

} // namespace distill::losses
