#pragma once

#include <array>
#include <cstdint>

#include <absl/status/status.h>

#include "losses/options.h"
#include "losses/token_metrics.h"

// The kind of a teacher says what a loss knows of it: which divergences can be computed and what the token metrics are.
namespace distill::losses {

enum class TeacherKind {
  kNone,
  kHidden, // hidden states and an lm_head: the whole distribution
  kTopK, // the k most probable tokens with their log-probabilities, and the probability of all others (the tail)
  kSampled, // draws with importance weights: unbiased estimates of expectations under the teacher
};
constexpr auto enum_names(TeacherKind) {
  return base::names_of<TeacherKind>("none", "hidden", "topk", "sampled");
}

enum class MetricQuality {
  kExact,
  kLowerBound, // the k + 1 outcomes' number, which is at most the whole distribution's (data-processing inequality)
  kEstimate, // unbiased: its mean over draws is the exact number
  kUnavailable, // the metric is 0 and says nothing
};
constexpr auto enum_names(MetricQuality) {
  return base::names_of<MetricQuality>("exact", "lower_bound", "estimate", "unavailable");
}

// Returns whether the teacher is a few columns of the vocabulary.
constexpr bool is_sparse(TeacherKind kind) {
  return kind == TeacherKind::kTopK || kind == TeacherKind::kSampled;
}

// What each token metric is, for a teacher of this kind and these options. With kSampled, kSoft is an estimate of the
// soft cross-entropy -sum p log q, which is KL(p || q) plus the teacher's entropy.
using MetricQualities = std::array<MetricQuality, kNumTokenMetrics>;
MetricQualities available_metrics(TeacherKind kind, const LossOptions& options);

// Returns InvalidArgument for a loss that a teacher of this kind cannot give, naming the option and what can be had.
// teacher_temperature: the temperature of the log-probabilities or samples (kTopK, kSampled).
absl::Status validate_for_teacher(const LossOptions& options, TeacherKind kind, double teacher_temperature);

} // namespace distill::losses
