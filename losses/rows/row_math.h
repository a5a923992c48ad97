#pragma once

#include <type_traits>

#include "losses/excluding_bias.h"
#include "losses/rows/row_args.h"
#include "losses/rows/row_functions.h"

// This is the mathematics of one row, which CPU kernel and CUDA kernels share. T is float or double.
//
// Everything is in base-2 logarithms of probabilities: lq = log2 q, lp = log2 p, d = lp - lq, r = 2^d = p / q. Every
// term then needs three exponentials and one logarithm, neither log(0) nor 0 * inf can occur (log-probabilities have a
// floor, r a ceiling), and d = 0 gives exactly 0 in every term. A row is four steps:
//   1. SideSums over the columns of each side, merged, give SideStats (the normalisers);
//   2. row_factors(): the row's multipliers of the columns' gradients;
//   3. column() for each column: its contributions to RowSums, and a and q;
//   4. finish_row() (row_metrics.h) writes the token's metrics; unit_gradient() or general_gradient() compute the
//   gradient from a and q.
namespace distill::losses {

// These constants follow from the options and are computed once per launch.
template <typename T>
struct RowConstants {
  Divergence divergence = Divergence::kNone;
  bool all_metrics = true; // otherwise MetricSet::kLoss
  bool unit_temperature = true;
  T to_log2 = 0; // log2(e) / T: from logits to base-2 logarithms
  T temperature = 1; // log2(e) / to_log2, with the rounding of to_log2
  T p_weight = 0; // of p in the mixture m
  T q_weight = 0; // of q in the mixture: 1 - p_weight
  T near[4] = {}; // log2(p_weight 2^d + q_weight) = near[0] d + near[1] d^2 + ... for small d
  T soft_gradient = 0; // the factor of q (a - sum q a) in the gradient
  T soft_scale = 1; // 1 or T^2
  T soft_weight = 0;
  T hard_weight = 0;
  T label_smoothing = 0;
  T smoothing_per_column = 0; // label_smoothing / V
  T z_loss = 0;
  T student_softcap = 0; // 0: none
  T teacher_softcap = 0;
  T student_cap_to_log2 = 0; // 2 log2(e) / softcap
  T teacher_cap_to_log2 = 0;
  T student_inverse_cap = 0; // 1 / softcap
  T teacher_inverse_cap = 0;
  T inverse_square_of_cap = 0; // 1 / softcap^2, of the student's
};

template <typename T>
RowConstants<T> row_constants(const RowArgs& args) {
  const LossOptions& o = args.options;
  RowConstants<T> c;
  c.divergence = args.teacher == nullptr ? Divergence::kNone : effective_divergence(o);
  c.all_metrics = o.metrics == MetricSet::kAll;
  c.unit_temperature = o.temperature == 1;
  c.to_log2 = static_cast<T>(kLog2E<double> / o.temperature);
  c.temperature = static_cast<T>(kLog2E<double> / static_cast<double>(c.to_log2));
  double through = 1;
  double p_weight = o.beta;
  switch (c.divergence) {
    case Divergence::kJsd:
      through = (1 - o.beta) * kLn2<double>;
      break;
    case Divergence::kReverseKl:
      through = kLn2<double>;
      break;
    case Divergence::kSkewForwardKl:
      p_weight = o.skew_alpha;
      through = 1 - o.skew_alpha;
      break;
    case Divergence::kSkewReverseKl:
      p_weight = 1 - o.skew_alpha;
      break;
    default:
      break;
  }
  c.p_weight = static_cast<T>(p_weight);
  c.q_weight = T(1) - c.p_weight; // so that the two add up to exactly 1
  // These are the cumulants of a coin that shows p with probability p_weight.
  const double variance = p_weight * (1 - p_weight);
  c.near[0] = static_cast<T>(p_weight);
  c.near[1] = static_cast<T>(variance * kLn2<double> / 2);
  c.near[2] = static_cast<T>(variance * (1 - 2 * p_weight) * kLn2<double> * kLn2<double> / 6);
  c.near[3] = static_cast<T>(variance * (1 - 6 * variance) * kLn2<double> * kLn2<double> * kLn2<double> / 24);
  const double scale = o.scale_by_temperature_squared ? o.temperature * o.temperature : 1.0;
  c.soft_scale = static_cast<T>(scale);
  c.soft_weight = static_cast<T>(c.divergence == Divergence::kNone ? 0 : o.soft_weight);
  c.soft_gradient = static_cast<T>(o.soft_weight * scale / o.temperature * through);
  c.hard_weight = static_cast<T>(args.targets == nullptr ? 0 : o.hard_weight);
  c.label_smoothing = static_cast<T>(o.label_smoothing);
  c.smoothing_per_column = static_cast<T>(o.label_smoothing / static_cast<double>(args.vocab));
  c.z_loss = static_cast<T>(o.z_loss);
  c.student_softcap = static_cast<T>(o.student_softcap);
  c.teacher_softcap = static_cast<T>(o.teacher_softcap);
  if (o.student_softcap > 0) {
    c.student_inverse_cap = static_cast<T>(1 / o.student_softcap);
    c.student_cap_to_log2 = static_cast<T>(2 * kLog2E<double> / o.student_softcap);
    c.inverse_square_of_cap = static_cast<T>(1 / (o.student_softcap * o.student_softcap));
  }
  if (o.teacher_softcap > 0) {
    c.teacher_inverse_cap = static_cast<T>(1 / o.teacher_softcap);
    c.teacher_cap_to_log2 = static_cast<T>(2 * kLog2E<double> / o.teacher_softcap);
  }
  return c;
}

template <typename T>
DISTILL_ROW_INLINE T softcapped(T logit, T cap) {
  return cap > 0 ? cap * row_tanh(logit / cap) : logit;
}

template <typename T>
DISTILL_ROW_INLINE bool excludes(T bias) {
  return bias <= static_cast<T>(kExcludingBias);
}

// Returns what a softcap makes of a logit to which `bias` was added.
template <typename T>
DISTILL_ROW_INLINE T softcapped(T biased_logit, T bias, T cap) {
  return excludes(bias) ? biased_logit : softcapped(biased_logit, cap);
}

// A side has a running maximum and sums; `sum` is of 2^((z - max) to_log2), `unit_sum` the same at T = 1 (used only
// where the temperature is another).
template <typename T>
struct SideSums {
  T max = -std::numeric_limits<T>::infinity();
  T sum = 0;
  T unit_sum = 0;
};

// Returns the number that a sum over columns subtracts from the logits: their maximum, or 0 where all are -inf.
template <typename T>
DISTILL_ROW_INLINE T finite_max(T max) {
  return max == -std::numeric_limits<T>::infinity() ? T(0) : max;
}

template <typename T>
DISTILL_ROW_INLINE T scaled_to(T sum, T from, T to, T to_log2) {
  return from == to ? sum : sum * row_exp2((from - to) * to_log2);
}

template <typename T>
DISTILL_ROW_INLINE SideSums<T> merge(const SideSums<T>& a, const SideSums<T>& b, T to_log2) {
  SideSums<T> both;
  both.max = row_max(a.max, b.max);
  both.sum = scaled_to(a.sum, a.max, both.max, to_log2) + scaled_to(b.sum, b.max, both.max, to_log2);
  both.unit_sum = scaled_to(a.unit_sum, a.max, both.max, kLog2E<T>) + scaled_to(b.unit_sum, b.max, both.max, kLog2E<T>);
  return both;
}

template <typename T>
struct SideStats {
  T max = 0; // a number near lse where a kernel for the loss alone finds no maximum
  T log2_sum = 0; // lq = (z - max) to_log2 - log2_sum
  T unit_log2_sum = 0; // log2_sum at T = 1
  T lse = 0; // log-sum-exp at T = 1, nats
};

// This runs once per row: it takes the library's log2, which is exact near 1, where the student is sure, and keeps NaN.
template <typename T>
DISTILL_ROW_INLINE SideStats<T> side_stats(const SideSums<T>& sums, const RowConstants<T>& c) {
  SideStats<T> stats;
  stats.log2_sum = log2(sums.sum);
  stats.unit_log2_sum = c.unit_temperature ? stats.log2_sum : log2(sums.unit_sum);
  stats.max = sums.max;
  stats.lse = sums.max + stats.unit_log2_sum * kLn2<T>;
  return stats;
}

// These multiply a row's columns; all hold the token's weight, and NaN where a normaliser is not finite, so that a
// NaN logit is never hidden.
template <typename T>
struct RowFactors {
  T soft = 0; // of q (a - sum q a)
  T hard = 0; // of q at T = 1
  T uniform = 0; // taken from every column: label smoothing
  T label = 0; // taken from the label's column
};

// Returns the factors. lse: SideStats::lse of the student and the teacher, 0 where there is none.
template <typename T>
DISTILL_ROW_INLINE T poison(T lse, T teacher_lse) {
  return (lse - lse) + (teacher_lse - teacher_lse);
}

template <typename T>
DISTILL_ROW_INLINE T poison(const SideStats<T>& student, const SideStats<T>& teacher) {
  return poison(student.lse, teacher.lse);
}

template <typename T>
DISTILL_ROW_INLINE RowFactors<T> row_factors(const RowConstants<T>& c, T lse, T teacher_lse, T token_weight) {
  RowFactors<T> f;
  const T weight = token_weight == 0 ? T(0) : token_weight + poison(lse, teacher_lse);
  f.soft = c.divergence == Divergence::kNone ? T(0) : c.soft_gradient * weight;
  f.hard = c.hard_weight * (T(1) + T(2) * c.z_loss * lse) * weight;
  f.uniform = c.hard_weight * c.smoothing_per_column * weight;
  f.label = c.hard_weight * (T(1) - c.label_smoothing) * weight;
  return f;
}

template <typename T>
DISTILL_ROW_INLINE RowFactors<T> row_factors(
    const RowConstants<T>& c, const SideStats<T>& student, const SideStats<T>& teacher, T token_weight) {
  return row_factors(c, student.lse, teacher.lse, token_weight);
}

template <typename T>
struct RowSums {
  T loss = 0; // terms that only this divergence has, see soft_loss()
  T q_a = 0; // sum q a
  T p_d = 0; // sum p (lp - lq)
  T q_d = 0; // sum q (lp - lq)
  T mass = 0; // sum (q - p): 0 apart from rounding errors, which it removes from the divergences
  T q_lq = 0;
  T p_lp = 0;
  T below_max = 0; // sum (max - z) of the student, for label smoothing
  T q = 0; // sum q, where mean_a() needs it
};

// With a = d divergence / d q + const, the gradient through the softmax is q (a - sum q a). Forward KL needs no sum:
// its gradient is q - p.
template <Divergence kDivergence>
inline constexpr bool kUsesQa = kDivergence != Divergence::kForwardKl&& kDivergence != Divergence::kNone;

// True where the divergence has terms other than those of the two KLs.
template <Divergence kDivergence>
inline constexpr bool kUsesLoss = kUsesQa<kDivergence>&& kDivergence != Divergence::kReverseKl;

// True where the divergence needs r.
template <Divergence kDivergence>
inline constexpr bool kUsesRatio = kUsesLoss<kDivergence>&& kDivergence != Divergence::kTotalVariation;

template <typename T>
struct ColumnPair {
  T d;
  T p;
  T q;
  T r; // where kUsesRatio
};

template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE ColumnPair<T> column_pair(T lp, T lq) {
  const T d = lp - lq;
  return {d, row_exp2(lp), row_exp2(lq), kUsesRatio<kDivergence> ? row_exp2(row_min(d, kMaxLogRatio<T>)) : T(0)};
}

template <typename T>
struct SoftTerms {
  T loss = 0;
  T a = 0; // forward KL: the gradient itself
};

// The mixture m = p_weight p + q_weight q enters as mixed = m / q = p_weight r + q_weight. Where d is beyond the
// ceiling q is 0, and p (d + log2(q / m)) is still right because both its terms use the same d.
// kBounded: d is known to be below the ceiling.
template <Divergence kDivergence, bool kSeriesNearZero, bool kBounded = false, typename T>
DISTILL_ROW_INLINE SoftTerms<T> soft_terms(const ColumnPair<T>& x, const RowConstants<T>& c) {
  SoftTerms<T> out;
  if constexpr (kDivergence == Divergence::kForwardKl) {
    out.a = x.q - x.p;
  } else if constexpr (kDivergence == Divergence::kReverseKl) {
    out.a = -x.d;
  } else if constexpr (kDivergence == Divergence::kTotalVariation) {
    out.loss = T(0.5) * (x.d < 0 ? x.q - x.p : x.p - x.q);
    out.a = x.d == 0 ? T(0) : (x.d < 0 ? T(0.5) : T(-0.5));
  } else if constexpr (kDivergence != Divergence::kNone) {
    const T d = kBounded ? x.d : row_min(x.d, kMaxLogRatio<T>);
    const T mixed = c.p_weight * x.r + c.q_weight;
    T log2_m_over_q = row_log2(mixed);
    if constexpr (kSeriesNearZero && sizeof(T) == 4) {
      // In fp32 the logarithm's error counts where p and q are close; the series' is below 1e-9 here.
      const T series = d * (c.near[0] + d * (c.near[1] + d * (c.near[2] + d * c.near[3])));
      log2_m_over_q = d * d < T(1.0 / 256) ? series : log2_m_over_q;
    }
    if constexpr (kDivergence == Divergence::kJsd) {
      out.loss = x.p * (d - log2_m_over_q);
      out.a = -log2_m_over_q;
    } else if constexpr (kDivergence == Divergence::kSkewForwardKl) {
      out.loss = x.p * (d - log2_m_over_q);
      out.a = -x.r / mixed; // -p / m
    } else {
      out.loss = -x.q * log2_m_over_q;
      out.a = -(kLn2<T> * log2_m_over_q + c.p_weight * c.q_weight * (T(1) - x.r) / mixed);
    }
  }
  return out;
}

// Returns sum q a, the mean of a. Skew forward KL's a is -1 for identical models, and only a mean over the same
// rounded q is then exactly -1 too.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T mean_a(T sum_q_a, T sum_q) {
  return kDivergence == Divergence::kSkewForwardKl ? sum_q_a / sum_q : sum_q_a;
}

// Calls `call` with the divergence as an integral_constant: only here a divergence becomes a template argument.
#ifdef __CUDACC__
#pragma nv_exec_check_disable // `call` may be for one of host and device only
#endif
template <typename F>
DISTILL_ROW_INLINE auto with_divergence(Divergence divergence, F&& call) {
  using enum Divergence;
  switch (divergence) {
    case kJsd:
      return call(std::integral_constant<Divergence, kJsd>());
    case kForwardKl:
      return call(std::integral_constant<Divergence, kForwardKl>());
    case kReverseKl:
      return call(std::integral_constant<Divergence, kReverseKl>());
    case kSkewForwardKl:
      return call(std::integral_constant<Divergence, kSkewForwardKl>());
    case kSkewReverseKl:
      return call(std::integral_constant<Divergence, kSkewReverseKl>());
    case kTotalVariation:
      return call(std::integral_constant<Divergence, kTotalVariation>());
    case kNone:
      break;
  }
  return call(std::integral_constant<Divergence, kNone>());
}

// The difference from the maximum is taken first: large logits keep their digits.
template <typename T>
DISTILL_ROW_INLINE T log2_prob(T logit, const SideStats<T>& side, const RowConstants<T>& c) {
  return row_max((logit - side.max) * c.to_log2 - side.log2_sum, kLogFloor<T>);
}

// Returns q at T = 1 where the temperature is another.
template <typename T>
DISTILL_ROW_INLINE T unit_prob(T logit, const SideStats<T>& side) {
  return row_exp2(row_max((logit - side.max) * kLog2E<T> - side.unit_log2_sum, kLogFloor<T>));
}

template <typename T>
struct ColumnResult {
  T a = 0; // SoftTerms::a
  T q = 0;
  T lq = 0;
};

// Adds what the loss and the gradient need of a column to the row's sums.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE void add_loss(const ColumnPair<T>& pair, const SoftTerms<T>& soft, RowSums<T>& add) {
  if constexpr (kUsesLoss<kDivergence>) {
    add.loss += soft.loss;
  }
  if constexpr (kUsesQa<kDivergence>) {
    add.q_a += pair.q * soft.a;
  }
  if constexpr (kDivergence == Divergence::kSkewForwardKl) {
    add.q += pair.q;
  }
}

// Adds the sums without which soft_loss() has no value, where add_loss() does not add them.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE void add_kl(const ColumnPair<T>& pair, RowSums<T>& add) {
  if constexpr (kDivergence == Divergence::kForwardKl) {
    add.p_d += pair.p * pair.d;
  } else if constexpr (kDivergence == Divergence::kReverseKl) {
    add.q_d += pair.q * pair.d;
  }
  if constexpr (kDivergence == Divergence::kForwardKl || kDivergence == Divergence::kReverseKl) {
    add.mass += pair.q - pair.p;
  }
}

// Adds a column with both sides to the row's sums (a reference for each, so that they may be lanes of a vector).
// kSeriesNearZero: more exact in fp32 where p and q are close, and slower. kLossAlone: without what only other metrics
// than the loss need.
template <Divergence kDivergence, bool kSeriesNearZero, bool kLossAlone = false, typename T>
DISTILL_ROW_INLINE ColumnResult<T> column_of_pair(
    const ColumnPair<T>& pair, T lp, T lq, const RowConstants<T>& c, RowSums<T>& add) {
  const SoftTerms<T> soft = soft_terms<kDivergence, kSeriesNearZero>(pair, c);
  add_loss<kDivergence>(pair, soft, add);
  if constexpr (kLossAlone) {
    add_kl<kDivergence>(pair, add);
  } else {
    add.p_d += pair.p * pair.d;
    add.q_d += pair.q * pair.d;
    add.mass += pair.q - pair.p;
    add.q_lq += pair.q * lq;
    add.p_lp += pair.p * lp;
  }
  return {soft.a, pair.q, lq};
}

// Does the same from logits after bias and softcap.
template <Divergence kDivergence, bool kSeriesNearZero, typename T>
DISTILL_ROW_INLINE ColumnResult<T> column(
    T student_logit, T teacher_logit, const SideStats<T>& student, const SideStats<T>& teacher,
    const RowConstants<T>& c, RowSums<T>& add) {
  const T lq = log2_prob(student_logit, student, c);
  const T lp = log2_prob(teacher_logit, teacher, c);
  return column_of_pair<kDivergence, kSeriesNearZero>(column_pair<kDivergence>(lp, lq), lp, lq, c, add);
}

// Adds a column of the student alone.
template <typename T>
DISTILL_ROW_INLINE ColumnResult<T> column(
    T student_logit, const SideStats<T>& student, const RowConstants<T>& c, RowSums<T>& add) {
  const T lq = log2_prob(student_logit, student, c);
  const T q = row_exp2(lq);
  add.q_lq += q * lq;
  return {T(0), q, lq};
}

// Returns the gradient with respect to the logit without the label's part, where T = 1 and there is no softcap.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T unit_gradient(T a, T q, T mean, const RowFactors<T>& f) {
  if constexpr (kDivergence == Divergence::kNone) {
    return f.hard * q - f.uniform;
  } else if constexpr (!kUsesQa<kDivergence>) {
    return f.soft * a + (f.hard * q - f.uniform);
  } else if constexpr (kDivergence == Divergence::kJsd) {
    // This is an operation less for each column. Other divergences need the difference first: their a and its mean may
    // be far from 0 and close to each other.
    return q * (f.soft * a + (f.hard - f.soft * mean)) - f.uniform;
  } else {
    return q * (f.soft * (a - mean) + f.hard) - f.uniform;
  }
}

// Returns the same in general. unit_q: q at T = 1; slope: of the softcap.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T general_gradient(T a, T q, T unit_q, T slope, T mean, const RowFactors<T>& f) {
  const T hard = f.hard * unit_q - f.uniform;
  if constexpr (kDivergence == Divergence::kNone) {
    return slope * hard;
  } else if constexpr (!kUsesQa<kDivergence>) {
    return slope * (f.soft * a + hard);
  } else {
    return slope * (f.soft * (q * (a - mean)) + hard);
  }
}

// Returns d capped logit / d logit; 0 where the column is excluded, whose logit may be far beyond the cap.
template <typename T>
DISTILL_ROW_INLINE T softcap_slope(T capped_logit, T cap) {
  const T ratio = capped_logit / cap;
  return row_max(T(1) - ratio * ratio, T(0));
}

} // namespace distill::losses
