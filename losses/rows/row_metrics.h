#pragma once

#include "losses/rows/row_math.h"

// A row's sums become the metrics of its token, and the numbers that a later backward pass needs.
namespace distill::losses {

// Returns the divergence of a row from its sums, nats, before T^2.
template <typename T>
DISTILL_ROW_INLINE T soft_loss(Divergence divergence, const RowSums<T>& sums, const RowConstants<T>& c) {
  switch (divergence) {
    case Divergence::kNone:
      return 0;
    case Divergence::kJsd:
      return kLn2<T> * (c.p_weight * sums.loss + c.q_weight * sums.q_a);
    case Divergence::kForwardKl:
      return kLn2<T> * sums.p_d + sums.mass;
    case Divergence::kReverseKl:
      return -kLn2<T> * sums.q_d - sums.mass;
    case Divergence::kSkewForwardKl:
      return kLn2<T> * sums.loss + c.q_weight * sums.mass;
    case Divergence::kSkewReverseKl:
      return kLn2<T> * sums.loss - c.p_weight * sums.mass;
    case Divergence::kTotalVariation:
      return sums.loss;
  }
  return 0;
}

// Returns a sum that only rounding can make negative: at least 0, and infinite beyond kInfiniteLoss. NaN stays NaN.
template <typename T>
DISTILL_ROW_INLINE T non_negative(T value) {
  return value <= 0 ? T(0) : (value > kInfiniteLoss<T> ? std::numeric_limits<T>::infinity() : value);
}

// finish_row needs these numbers of the row in addition to the sums.
template <typename T>
struct RowEpilogue {
  bool has_teacher = false;
  bool has_label = false;
  T label_logit = 0; // the student's, after bias and softcap
  T token_weight = 1;
  int64_t label = 0;
  int64_t student_best = 0; // first column of the maximum
  int64_t teacher_best = 0;
  int64_t vocab = 1;
  T* saved = nullptr; // this row's column of RowArgs::saved
};

// Returns kTeacherCe, the teacher's cross-entropy on the label at T = 1. label_logit: its logit after bias and softcap.
template <typename T>
DISTILL_ROW_INLINE T
teacher_ce(const RowConstants<T>& c, const SideStats<T>& student, const SideStats<T>& teacher, T label_logit) {
  if (!c.all_metrics) {
    return 0;
  }
  return non_negative((teacher.max - label_logit) + teacher.unit_log2_sum * kLn2<T>) + poison(student, teacher);
}

// Writes one token's column of the [kNumTokenMetrics, R] metrics and of RowArgs::saved. `out`: the column's first
// element; `stride`: elements between the metrics. All metrics but kTeacherCe, which is another thread's to write where
// only that thread has the teacher's logit of the label.
template <typename T>
DISTILL_ROW_INLINE void finish_row(
    T* out, int64_t stride, const RowConstants<T>& c, const SideStats<T>& student, const SideStats<T>& teacher,
    const RowSums<T>& sums, const RowEpilogue<T>& end) {
  const T bad = poison(student, teacher);
  const T z_loss = student.lse * student.lse;
  T hard = 0;
  if (end.has_label) {
    hard = (T(1) - c.label_smoothing) * non_negative((student.max - end.label_logit) + student.unit_log2_sum * kLn2<T>);
    if (c.label_smoothing > 0) {
      const T mean_below = sums.below_max / static_cast<T>(end.vocab) + (student.lse - student.max);
      hard += c.label_smoothing * non_negative(mean_below);
    }
    hard += bad;
  }
  const T soft = end.has_teacher ? c.soft_scale * (non_negative(soft_loss(c.divergence, sums, c)) + bad) : T(0);
  const T loss = c.hard_weight * (hard + c.z_loss * z_loss) + (c.soft_weight > 0 ? c.soft_weight * soft : T(0));
  out[kLoss * stride] = end.token_weight == 0 ? T(0) : end.token_weight * loss;
  out[kHard * stride] = hard;
  out[kSoft * stride] = soft;
  out[kZLoss * stride] = z_loss;
  if (end.saved != nullptr) {
    end.saved[kSavedStudentMax * stride] = student.max;
    end.saved[kSavedStudentLog2Sum * stride] = student.log2_sum;
    end.saved[kSavedStudentUnitLog2Sum * stride] = student.unit_log2_sum;
    end.saved[kSavedTeacherMax * stride] = teacher.max;
    end.saved[kSavedTeacherLog2Sum * stride] = teacher.log2_sum;
    end.saved[kSavedMean * stride] = c.divergence == Divergence::kSkewForwardKl ? sums.q_a / sums.q : sums.q_a;
  }
  out[kStudentLse * stride] = student.lse;
  out[kTeacherLse * stride] = end.has_teacher ? teacher.lse : T(0);
  if (!c.all_metrics) {
    for (int64_t metric = 0; metric < kNumTokenMetrics; ++metric) {
      if (!is_of_the_loss(metric)) {
        out[metric * stride] = 0;
      }
    }
    return;
  }
  out[kForwardKl * stride] = end.has_teacher ? non_negative(soft_loss(Divergence::kForwardKl, sums, c)) + bad : T(0);
  out[kReverseKl * stride] = end.has_teacher ? non_negative(soft_loss(Divergence::kReverseKl, sums, c)) + bad : T(0);
  out[kStudentEntropy * stride] = non_negative(-kLn2<T> * sums.q_lq) + bad;
  out[kTeacherEntropy * stride] = end.has_teacher ? non_negative(-kLn2<T> * sums.p_lp) + bad : T(0);
  out[kAgreement * stride] = end.has_teacher && end.student_best == end.teacher_best ? T(1) : T(0);
  out[kAccuracy * stride] = end.has_label && end.student_best == end.label ? T(1) : T(0);
}

template <typename T>
DISTILL_ROW_INLINE void zero_metrics(T* out, int64_t stride) {
  for (int64_t k = 0; k < kNumTokenMetrics; ++k) {
    out[k * stride] = 0;
  }
}

} // namespace distill::losses
