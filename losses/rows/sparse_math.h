#pragma once

#include "losses/rows/row_metrics.h"
#include "losses/rows/sparse_args.h"

// This is the mathematics of a row whose teacher is a few columns, for CPU and CUDA kernels. With top-k, distributions
// are taken over k + 1 outcomes, the entries and the tail as one bucket, and an outcome is a column of row_math.h whose
// logits are its base-2 log-probabilities. By the data-processing inequality every divergence over the outcomes is at
// most that over the vocabulary. Samples: sum w f(id) estimates sum p f, so that -sum w log q estimates the soft
// cross-entropy.
namespace distill::losses {

template <typename T>
struct Entry {
  int64_t id = -1;
  T logit = 0; // the student's, after bias and softcap
  T value = 0; // log-probability in nats, or weight
};

// The first pass over a row's entries finds these.
template <typename T>
struct EntryExtremes {
  T max_logit = -std::numeric_limits<T>::infinity();
  T max_value = -std::numeric_limits<T>::infinity();
  T min_value = std::numeric_limits<T>::infinity();
  int count = 0;
  int label_entry = -1; // the entry that is the label
};

template <typename T>
DISTILL_ROW_INLINE void add_entry(EntryExtremes<T>& e, const Entry<T>& entry, int k, int64_t label) {
  if (entry.id < 0) {
    return;
  }
  e.max_logit = row_max(entry.logit, e.max_logit);
  e.max_value = row_max(entry.value, e.max_value);
  e.min_value = row_min(entry.value, e.min_value);
  ++e.count;
  e.label_entry = entry.id == label ? k : e.label_entry;
}

// The second pass finds the normalisers, and the first entry and column with the maxima.
template <typename T>
struct EntrySums {
  T sum = 0; // of 2^((logit - max) to_log2)
  T unit_sum = 0; // the same at T = 1
  T mass = 0; // of the teacher's probabilities
  int teacher_best = INT32_MAX; // entry; INT32_MAX: none, or all values are NaN
  int student_best = INT32_MAX; // column
};

template <typename T>
DISTILL_ROW_INLINE void add_entry(
    EntrySums<T>& s, const Entry<T>& entry, int k, const EntryExtremes<T>& e, const RowConstants<T>& c) {
  if (entry.id < 0) {
    return;
  }
  const T below = entry.logit - finite_max(e.max_logit);
  s.sum += row_exp2(below * c.to_log2);
  s.unit_sum += row_exp2(below * kLog2E<T>);
  s.mass += row_exp2(entry.value * kLog2E<T>);
  if (entry.value == e.max_value && k < s.teacher_best) {
    s.teacher_best = k;
  }
  if (entry.logit == e.max_logit && entry.id < s.student_best) {
    s.student_best = static_cast<int>(entry.id);
  }
}

// Returns the numbers that the row kernel saved of a row.
template <typename T>
DISTILL_ROW_INLINE SideStats<T> saved_student(const RowArgs& args, int64_t row) {
  const auto saved = [&](SavedValue k) { return static_cast<const T*>(args.saved)[k * args.metrics_stride + row]; };
  SideStats<T> stats;
  stats.max = saved(kSavedStudentMax);
  stats.log2_sum = saved(kSavedStudentLog2Sum);
  stats.unit_log2_sum = saved(kSavedStudentUnitLog2Sum);
  stats.lse = stats.max + stats.unit_log2_sum * kLn2<T>;
  return stats;
}

// Returns the whole row's normalisers from the tail's and the entries'.
template <typename T>
DISTILL_ROW_INLINE SideStats<T> joined_stats(
    const SideStats<T>& tail, const EntryExtremes<T>& e, const EntrySums<T>& s, const RowConstants<T>& c) {
  const SideSums<T> of_tail{tail.max, row_exp2(tail.log2_sum), row_exp2(tail.unit_log2_sum)};
  const SideSums<T> of_entries{e.max_logit, s.sum, s.unit_sum};
  return side_stats(merge(of_tail, of_entries, c.to_log2), c);
}

// Returns log2 of the tail's share in the row's sum.
template <typename T>
DISTILL_ROW_INLINE T tail_log2_prob(const SideStats<T>& tail, const SideStats<T>& all, const RowConstants<T>& c) {
  return row_max((tail.max - all.max) * c.to_log2 + tail.log2_sum - all.log2_sum, kLogFloor<T>);
}

// For SparseStage::kLogProbs these return an entry's log-probability in nats, and the tail's probability.
template <typename T>
DISTILL_ROW_INLINE T log_prob(T logit, const SideStats<T>& all, const RowConstants<T>& c) {
  return ((logit - all.max) * c.to_log2 - all.log2_sum) * kLn2<T>; // keeps NaN and -inf
}

template <typename T>
DISTILL_ROW_INLINE T tail_prob(
    const SideStats<T>& tail, const SideStats<T>& all, const EntryExtremes<T>& e, int64_t vocab,
    const RowConstants<T>& c) {
  return e.count >= vocab ? T(0) : row_exp2(tail_log2_prob(tail, all, c)) + (all.lse - all.lse); // keeps NaN
}

// Returns constants for outcomes: their logits are base-2 log-probabilities already.
template <typename T>
DISTILL_ROW_INLINE RowConstants<T> outcome_constants(RowConstants<T> c) {
  c.to_log2 = 1;
  return c;
}

// An Outcomes has both sides' normalisers over the k + 1 outcomes.
template <typename T>
struct Outcomes {
  SideStats<T> student; // of the whole row
  SideStats<T> teacher; // lse: log of the mass that the teacher's numbers add up to; they are divided by it
  T mass_log2 = 0;
  T tail_lq = 0;
  T tail_lp = 0;
};

// Returns the outcomes. tail_mass: the teacher's. Where the entries are all columns there is no tail, whatever rounding
template <typename T>
DISTILL_ROW_INLINE Outcomes<T> make_outcomes(
    const SideStats<T>& tail, T tail_mass, const EntryExtremes<T>& e, const EntrySums<T>& s, int64_t vocab,
    const RowConstants<T>& c) {
  Outcomes<T> out;
  out.student = joined_stats(tail, e, s, c);
  const T mass = tail_mass <= 0 || e.count >= vocab ? T(0) : tail_mass; // keeps NaN
  out.mass_log2 = log2(s.mass + mass);
  out.teacher.lse = out.mass_log2 * kLn2<T>;
  out.tail_lq = tail_log2_prob(tail, out.student, c);
  out.tail_lp = mass == 0 ? kLogFloor<T> : row_max(static_cast<T>(log2(mass)) - out.mass_log2, kLogFloor<T>);
  return out;
}

template <typename T>
DISTILL_ROW_INLINE T entry_log2_prob(T value, const Outcomes<T>& outcomes) {
  return row_max(value * kLog2E<T> - outcomes.mass_log2, kLogFloor<T>);
}

// Adds one outcome to the row's sums. oc: outcome_constants().
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE ColumnResult<T> outcome(T lp, T lq, const RowConstants<T>& oc, RowSums<T>& add) {
  const SideStats<T> as_they_are;
  return column<kDivergence, true>(lq, lp, as_they_are, as_they_are, oc, add);
}

template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE ColumnResult<T> entry_outcome(
    const Entry<T>& entry, const Outcomes<T>& outcomes, const RowConstants<T>& c, const RowConstants<T>& oc,
    RowSums<T>& add) {
  return outcome<kDivergence>(
      entry_log2_prob(entry.value, outcomes), log2_prob(entry.logit, outcomes.student, c), oc, add);
}

// Returns the soft term's part of the gradient at an entry, before the factor.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T entry_slope(const ColumnResult<T>& x, T mean) {
  return kUsesQa<kDivergence> ? x.q * (x.a - mean) : x.a;
}

// Returns the same for a column of the tail, divided by the column's q: the bucket's gradient goes to its columns by
// their share of it.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T tail_slope(const Outcomes<T>& outcomes, T mean, const RowConstants<T>& oc) {
  if constexpr (kDivergence == Divergence::kNone) {
    return T(0);
  } else if constexpr (!kUsesQa<kDivergence>) {
    return T(1) - row_exp2(row_min(outcomes.tail_lp - outcomes.tail_lq, kMaxLogRatio<T>));
  } else {
    RowSums<T> unused;
    return outcome<kDivergence>(outcomes.tail_lp, outcomes.tail_lq, oc, unused).a - mean;
  }
}

// Returns the gradient with respect to a logit, without the label's part. `soft`: the soft term's slope.
template <typename T>
DISTILL_ROW_INLINE T
sparse_gradient(T soft, T q, T logit, const SideStats<T>& student, const RowFactors<T>& f, const RowConstants<T>& c) {
  const T unit_q = c.unit_temperature ? q : unit_prob(logit, student);
  const T slope = c.student_softcap > 0 ? softcap_slope(logit, c.student_softcap) : T(1);
  return slope * (f.soft * soft + (f.hard * unit_q - f.uniform));
}

// The gradient of the columns that are no entries needs these.
template <typename T>
struct ColumnSlopes {
  SideStats<T> student;
  RowFactors<T> factors;
  T soft = 0; // times q: the soft term's slope
};

template <typename T>
DISTILL_ROW_INLINE T column_gradient(T logit, const ColumnSlopes<T>& row, const RowConstants<T>& c) {
  const T q = row_exp2(log2_prob(logit, row.student, c));
  return sparse_gradient(row.soft * q, q, logit, row.student, row.factors, c);
}

// Top-k's metrics need these numbers of a row in addition to the sums.
template <typename T>
struct TopKEpilogue {
  RowEpilogue<T> row; // student_best -1: a column of the tail, whose accuracy the row kernel has found
  T tail_accuracy = 0;
  T tail_entropy = 0; // nats, of the student's distribution within the tail
  T label_lp = 0; // the teacher's, base 2; a label that is no entry has at most the smallest entry's and the tail's
};

// Returns an upper bound of log2 p of a label that is no entry, at least -126: its cross-entropy's bound is finite.
template <typename T>
DISTILL_ROW_INLINE T unlisted_label_lp(const Outcomes<T>& outcomes, T min_value) {
  return row_max(row_min(outcomes.tail_lp, entry_log2_prob(min_value, outcomes)), T(-126));
}

// Does for top-k what finish_row() does. `sums`: over the outcomes.
template <typename T>
DISTILL_ROW_INLINE void finish_topk_row(
    T* out, int64_t stride, const RowConstants<T>& c, const RowConstants<T>& oc, const Outcomes<T>& outcomes,
    RowSums<T> sums, const TopKEpilogue<T>& end) {
  const T tail_q = row_exp2(outcomes.tail_lq);
  if (tail_q > 0) {
    sums.q_lq -= tail_q * end.tail_entropy * kLog2E<T>; // the chain rule of entropy
  }
  finish_row(out, stride, oc, outcomes.student, outcomes.teacher, sums, end.row);
  out[kTeacherLse * stride] = 0;
  if (end.row.has_label && end.row.student_best < 0) {
    out[kAccuracy * stride] = end.tail_accuracy;
  }
  const bool has_teacher_ce = end.row.has_label && c.unit_temperature;
  out[kTeacherCe * stride] =
      has_teacher_ce ? non_negative(-end.label_lp * kLn2<T>) + poison(outcomes.student, outcomes.teacher) : T(0);
}

// These are the sums of a row's samples.
template <typename T>
struct SampleSums {
  T weight = 0;
  T weight_lq = 0; // sum w log2 q
};

// Adds the soft term to the metrics that the row kernel wrote without a teacher.
template <typename T>
DISTILL_ROW_INLINE void finish_sampled_row(
    T* out, int64_t stride, const RowConstants<T>& c, const SideStats<T>& student, const SampleSums<T>& sums,
    T token_weight) {
  if (c.divergence == Divergence::kNone) {
    return;
  }
  const T bad = (student.lse - student.lse) + (sums.weight - sums.weight);
  const T soft = c.soft_scale * (non_negative(-kLn2<T> * sums.weight_lq) + bad);
  out[kSoft * stride] = soft;
  if (c.soft_weight > 0 && token_weight != 0) {
    out[kLoss * stride] += token_weight * c.soft_weight * soft;
  }
}

// Returns the RowConstants of a row with a sparse teacher, whose RowArgs have none.
template <typename T>
RowConstants<T> sparse_constants(const SparseRowArgs& args) {
  RowArgs with_teacher = args.rows;
  with_teacher.teacher = args.teacher.ids;
  return row_constants<T>(with_teacher);
}

} // namespace distill::losses
