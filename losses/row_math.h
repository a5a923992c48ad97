#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "losses/rows.h"

#if defined(__CUDACC__)
#define DISTILL_ROW_INLINE __host__ __device__ __forceinline__
#else
#define DISTILL_ROW_INLINE inline __attribute__((always_inline))
#endif

// The mathematics of one row, for the CPU kernel and the CUDA kernels alike. T is float or double.
//
// Everything is in base-2 logarithms of probabilities: lq = log2 q, lp = log2 p, d = lp - lq, gap = |d|,
// t = 2^-gap = smaller / larger. Every term then needs two exponentials and one logarithm, neither log(0) nor 0 * inf
// can occur (log-probabilities have a floor), and d = 0 gives exactly 0 in every term. A row is four steps:
//   1. SideSums over the columns of each side, merged, give SideStats (the normalisers);
//   2. row_factors(): what the columns are multiplied by in this row;
//   3. column() for each column: its contributions to RowSums, and a and q;
//   4. finish_row() writes the output rows, column_gradient() the gradient.
namespace distill::losses {

template <typename T>
inline constexpr T kLog2E = static_cast<T>(1.4426950408889634074);
template <typename T>
inline constexpr T kLn2 = static_cast<T>(0.69314718055994530942);
// Stands for log2(0): products with a probability of 0 stay 0.
template <typename T>
inline constexpr T kLogFloor = static_cast<T>(-1e30);
// A sum beyond it met log2(0) where the other side has mass: infinite.
template <typename T>
inline constexpr T kInfiniteLoss = static_cast<T>(1e20);

// exp2 and log2 that vectorise on the host and are one instruction on the device. Absolute error of log2 on (0, 2] and
// relative error of exp2 on (-126, 1]: about 2e-7 in fp32. exp2(0) = 1 and log2(1) = 0 exactly; exp2(x < -126) = 0.
DISTILL_ROW_INLINE double row_exp2(double x) {
  return exp2(x);
}

DISTILL_ROW_INLINE double row_log2(double x) {
  return log2(x);
}

DISTILL_ROW_INLINE double row_tanh(double x) {
  return tanh(x);
}

#if defined(__CUDA_ARCH__)
DISTILL_ROW_INLINE float row_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DISTILL_ROW_INLINE float row_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DISTILL_ROW_INLINE float row_tanh(float x) {
  return tanhf(x);
}
#else
DISTILL_ROW_INLINE int32_t row_bits(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

DISTILL_ROW_INLINE float row_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Cephes' exp2f: 2^x = 2^n 2^f with n the nearest integer (found by adding 1.5 * 2^23) and a polynomial in f.
DISTILL_ROW_INLINE float row_exp2(float x) {
  const float bounded = x < -126.0F ? -126.0F : x;
  const float shifted = bounded + 12582912.0F;
  const float f = bounded - (shifted - 12582912.0F);
  float y = 1.535336188319500e-4F;
  y = y * f + 1.339887440266574e-3F;
  y = y * f + 9.618437357674640e-3F;
  y = y * f + 5.550332471162809e-2F;
  y = y * f + 2.402264791363012e-1F;
  y = y * f + 6.931472028550421e-1F;
  y = y * f + 1.0F;
  const auto exponent = static_cast<int32_t>((static_cast<uint32_t>(row_bits(shifted)) + 127U) << 23U);
  return x < -126.0F ? 0.0F : y * row_float(exponent);
}

// Cephes' logf on [sqrt(1/2), sqrt(2)) times 2^n. For normal x > 0.
DISTILL_ROW_INLINE float row_log2(float x) {
  const int32_t shifted = row_bits(x) - 0x3f3504f3;
  const int32_t n = shifted >> 23;
  const float f = row_float((shifted & 0x007fffff) + 0x3f3504f3) - 1.0F;
  float y = 7.0376836292e-2F;
  y = y * f - 1.1514610310e-1F;
  y = y * f + 1.1676998740e-1F;
  y = y * f - 1.2420140846e-1F;
  y = y * f + 1.4249322787e-1F;
  y = y * f - 1.6668057665e-1F;
  y = y * f + 2.0000714765e-1F;
  y = y * f - 2.4999993993e-1F;
  y = y * f + 3.3333331174e-1F;
  const float square = f * f;
  return (f + (y * f * square - 0.5F * square)) * kLog2E<float> + static_cast<float>(n);
}

// The rational approximation that Eigen uses.
DISTILL_ROW_INLINE float row_tanh(float value) {
  const float x = value < -7.9F ? -7.9F : (value > 7.9F ? 7.9F : value);
  const float s = x * x;
  float a = -2.76076847742355e-16F;
  a = a * s + 2.00018790482477e-13F;
  a = a * s - 8.60467152213735e-11F;
  a = a * s + 5.12229709037114e-08F;
  a = a * s + 1.48572235717979e-05F;
  a = a * s + 6.37261928875436e-04F;
  a = a * s + 4.89352455891786e-03F;
  float b = 1.19825839466702e-06F;
  b = b * s + 1.18534705686654e-04F;
  b = b * s + 2.26843463243900e-03F;
  b = b * s + 4.89352518554385e-03F;
  return x * a / b;
}
#endif

// b where a is NaN.
DISTILL_ROW_INLINE double row_max(double a, double b) {
  return a > b ? a : b;
}

DISTILL_ROW_INLINE float row_max(float a, float b) {
#if defined(__CUDA_ARCH__)
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// What the options come to, once per launch.
template <typename T>
struct RowConstants {
  Divergence divergence = Divergence::kNone;
  bool unit_temperature = true;
  T to_log2 = 0; // log2(e) / T: from logits to base-2 logarithms
  T p_weight = 0; // of p in the mixture m; q has the rest
  T skew_alpha = 0;
  T soft_gradient = 0; // what q (a - sum q a) is multiplied by
  T soft_scale = 1; // 1 or T^2
  T soft_weight = 0;
  T hard_weight = 0;
  T label_smoothing = 0;
  T smoothing_per_column = 0; // label_smoothing / V
  T z_loss = 0;
  T student_softcap = 0;
  T teacher_softcap = 0;
};

template <typename T>
RowConstants<T> row_constants(const RowArgs& args) {
  const LossOptions& o = args.options;
  RowConstants<T> c;
  c.divergence = args.teacher == nullptr ? Divergence::kNone : effective_divergence(o);
  c.unit_temperature = o.temperature == 1;
  c.to_log2 = static_cast<T>(kLog2E<double> / o.temperature);
  c.skew_alpha = static_cast<T>(o.skew_alpha);
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
  return c;
}

template <typename T>
DISTILL_ROW_INLINE T softcapped(T logit, T cap) {
  return cap > 0 ? cap * row_tanh(logit / cap) : logit;
}

// Running maximum and sums of one side; `sum` is of 2^((z - max) to_log2), `unit_sum` the same at T = 1 (used only
// where the temperature is another).
template <typename T>
struct SideSums {
  T max = -std::numeric_limits<T>::infinity();
  T sum = 0;
  T unit_sum = 0;
};

// What a sum over columns subtracts from the logits: their maximum, or 0 where all are -inf.
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
  T max = 0;
  T log2_sum = 0; // lq = (z - max) to_log2 - log2_sum
  T log2_norm = 0; // lq = z to_log2 - log2_norm: one operation less, a rounding of this number more
  T unit_log2_sum = 0; // log2_sum at T = 1
  T lse = 0; // log-sum-exp at T = 1, nats
};

// Once per row, so with the library's log2, which also keeps a NaN.
template <typename T>
DISTILL_ROW_INLINE SideStats<T> side_stats(const SideSums<T>& sums, const RowConstants<T>& c) {
  SideStats<T> stats;
  stats.log2_sum = log2(sums.sum);
  stats.unit_log2_sum = c.unit_temperature ? stats.log2_sum : log2(sums.unit_sum);
  stats.max = sums.max;
  stats.log2_norm = sums.max * c.to_log2 + stats.log2_sum;
  stats.lse = sums.max + stats.unit_log2_sum * kLn2<T>;
  return stats;
}

// Per-row multipliers of the columns; all hold the token's weight, and NaN where a normaliser is not finite, so that a
// NaN logit is never hidden.
template <typename T>
struct RowFactors {
  T soft = 0; // of q (a - sum q a)
  T hard = 0; // of q at T = 1
  T uniform = 0; // taken from every column: label smoothing
  T label = 0; // taken from the label's column
};

template <typename T>
DISTILL_ROW_INLINE T poison(const SideStats<T>& student, const SideStats<T>& teacher) {
  return (student.lse - student.lse) + (teacher.lse - teacher.lse);
}

template <typename T>
DISTILL_ROW_INLINE RowFactors<T> row_factors(
    const RowConstants<T>& c, const SideStats<T>& student, const SideStats<T>& teacher, T token_weight) {
  RowFactors<T> f;
  const T weight = token_weight == 0 ? T(0) : token_weight + poison(student, teacher);
  f.soft = c.divergence == Divergence::kNone ? T(0) : c.soft_gradient * weight;
  f.hard = c.hard_weight * (T(1) + T(2) * c.z_loss * student.lse) * weight;
  f.uniform = c.hard_weight * c.smoothing_per_column * weight;
  f.label = c.hard_weight * (T(1) - c.label_smoothing) * weight;
  return f;
}

template <typename T>
struct RowSums {
  T loss = 0; // of the divergence's own terms, see soft_loss()
  T q_a = 0; // sum q a
  T p_d = 0; // sum p (lp - lq)
  T q_d = 0; // sum q (lp - lq)
  T mass = 0; // sum (q - p): 0 but for rounding, which it takes out of the divergences
  T q_lq = 0;
  T p_lp = 0;
  T below_max = 0; // sum (max - z) of the student, for label smoothing
  T q = 0; // sum q, where mean_q_a() needs it
};

// With d divergence / d q = a + const, the gradient through the softmax is q (a - sum q a). Forward KL needs no sum:
// its gradient is q - p, which stands in the place of a.
template <Divergence kDivergence>
inline constexpr bool kUsesQa = kDivergence != Divergence::kForwardKl&& kDivergence != Divergence::kNone;

// Whether the divergence has terms of its own beside those of the two KLs.
template <Divergence kDivergence>
inline constexpr bool kUsesLoss = kUsesQa<kDivergence>&& kDivergence != Divergence::kReverseKl;

// Whether p's and q's larger one is the student's, and their ratios.
template <typename T>
struct ColumnPair {
  T d;
  T gap;
  T larger;
  T ratio;
  T p;
  T q;
  bool student_larger;
};

template <typename T>
DISTILL_ROW_INLINE ColumnPair<T> column_pair(T lp, T lq) {
  ColumnPair<T> x;
  x.d = lp - lq;
  x.student_larger = x.d < 0;
  x.gap = x.student_larger ? -x.d : x.d;
  x.larger = row_exp2(row_max(lp, lq));
  x.ratio = row_exp2(-x.gap);
  const T smaller = x.larger * x.ratio;
  x.p = x.student_larger ? smaller : x.larger;
  x.q = x.student_larger ? x.larger : smaller;
  return x;
}

template <typename T>
struct SoftTerms {
  T loss = 0;
  T a = 0;
};

// Formulas: with w the weight of the smaller one in m, m = larger * (1 - w + w t), so log2(larger / m) = -log2(mixed).
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE SoftTerms<T> soft_terms(const ColumnPair<T>& x, const RowConstants<T>& c) {
  SoftTerms<T> out;
  if constexpr (kDivergence == Divergence::kForwardKl) {
    out.a = x.q - x.p;
  } else if constexpr (kDivergence == Divergence::kReverseKl) {
    out.a = -x.d;
  } else if constexpr (kDivergence == Divergence::kTotalVariation) {
    const T difference = x.q - x.p;
    out.loss = T(0.5) * (x.student_larger ? difference : -difference);
    out.a = x.d == 0 ? T(0) : (x.student_larger ? T(0.5) : T(-0.5));
  } else if constexpr (kDivergence != Divergence::kNone) {
    const T smaller_weight = x.student_larger ? c.p_weight : T(1) - c.p_weight;
    const T smaller_part = smaller_weight * x.ratio;
    const T mixed = (T(1) - smaller_weight) + smaller_part;
    const T log_mixed = row_log2(mixed);
    const T log2_q_over_m = -log_mixed - (x.student_larger ? T(0) : x.gap);
    if constexpr (kDivergence == Divergence::kJsd) {
      out.loss = -x.larger * (log_mixed * mixed + smaller_part * x.gap);
      out.a = log2_q_over_m;
    } else {
      if constexpr (kDivergence == Divergence::kSkewForwardKl) {
        out.loss = x.p * (-log_mixed - (x.student_larger ? x.gap : T(0)));
        out.a = -(x.student_larger ? x.ratio : T(1)) / mixed; // -p / m
      } else {
        const T difference = (x.student_larger ? T(1) - x.ratio : x.ratio - T(1)) / mixed; // (q - p) / m
        out.loss = x.q * log2_q_over_m;
        out.a = kLn2<T> * log2_q_over_m - c.skew_alpha * (T(1) - c.skew_alpha) * difference;
      }
    }
  }
  return out;
}

// sum q a, the mean of a. Skew forward KL's a is -1 throughout for identical models, and only a mean over the same
// rounded q is then exactly -1 too.
template <typename T>
DISTILL_ROW_INLINE T mean_q_a(Divergence divergence, const RowSums<T>& sums) {
  return divergence == Divergence::kSkewForwardKl ? sums.q_a / sums.q : sums.q_a;
}

// The divergence of a row from its sums, nats, before T^2.
template <typename T>
DISTILL_ROW_INLINE T soft_loss(Divergence divergence, const RowSums<T>& sums, T skew_alpha) {
  switch (divergence) {
    case Divergence::kNone:
      return 0;
    case Divergence::kJsd:
      return kLn2<T> * sums.loss;
    case Divergence::kForwardKl:
      return kLn2<T> * sums.p_d + sums.mass;
    case Divergence::kReverseKl:
      return -kLn2<T> * sums.q_d - sums.mass;
    case Divergence::kSkewForwardKl:
      return kLn2<T> * sums.loss + (T(1) - skew_alpha) * sums.mass;
    case Divergence::kSkewReverseKl:
      return kLn2<T> * sums.loss - (T(1) - skew_alpha) * sums.mass;
    case Divergence::kTotalVariation:
      return sums.loss;
  }
  return 0;
}

// At small temperatures the logits over T are large, and what counts is their small difference from the maximum.
template <bool kGeneral, typename T>
DISTILL_ROW_INLINE T log2_prob(T logit, const SideStats<T>& side, const RowConstants<T>& c) {
  const T log2_q = kGeneral ? (logit - side.max) * c.to_log2 - side.log2_sum : logit * c.to_log2 - side.log2_norm;
  return row_max(log2_q, kLogFloor<T>);
}

// q at T = 1 where the temperature is another.
template <typename T>
DISTILL_ROW_INLINE T unit_prob(T logit, const SideStats<T>& side) {
  return row_exp2(row_max((logit - side.max) * kLog2E<T> - side.unit_log2_sum, kLogFloor<T>));
}

template <typename T>
struct ColumnResult {
  T a = 0;
  T q = 0;
};

// One column with both sides, added to the row's sums (a reference for each, so that they may be lanes of a vector).
// Logits after bias and softcap. kGeneral: any temperature and softcap; otherwise neither.
template <Divergence kDivergence, bool kGeneral, typename T>
DISTILL_ROW_INLINE ColumnResult<T> column(
    T student_logit, T teacher_logit, const SideStats<T>& student, const SideStats<T>& teacher,
    const RowConstants<T>& c, RowSums<T>& add) {
  const T lq = log2_prob<kGeneral>(student_logit, student, c);
  const T lp = log2_prob<kGeneral>(teacher_logit, teacher, c);
  const ColumnPair<T> x = column_pair(lp, lq);
  const SoftTerms<T> soft = soft_terms<kDivergence>(x, c);
  if constexpr (kUsesLoss<kDivergence>) {
    add.loss += soft.loss;
  }
  if constexpr (kUsesQa<kDivergence>) {
    add.q_a += x.q * soft.a;
  }
  if constexpr (kDivergence == Divergence::kSkewForwardKl) {
    add.q += x.q;
  }
  add.p_d += x.p * x.d;
  add.q_d += x.q * x.d;
  add.mass += x.q - x.p;
  add.q_lq += x.q * lq;
  add.p_lp += x.p * lp;
  return {soft.a, x.q};
}

// One column of the student alone.
template <bool kGeneral, typename T>
DISTILL_ROW_INLINE ColumnResult<T> column(
    T student_logit, const SideStats<T>& student, const RowConstants<T>& c, RowSums<T>& add) {
  const T lq = log2_prob<kGeneral>(student_logit, student, c);
  const T q = row_exp2(lq);
  add.q_lq += q * lq;
  return {T(0), q};
}

// The gradient with respect to the capped logit, but for the label's column. unit_q: q at T = 1.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T column_gradient(T a, T q, T unit_q, T sum_q_a, const RowFactors<T>& f) {
  const T hard = f.hard * unit_q - f.uniform;
  if constexpr (kDivergence == Divergence::kNone) {
    return hard;
  } else if constexpr (!kUsesQa<kDivergence>) {
    return f.soft * a + hard;
  } else {
    return f.soft * (q * (a - sum_q_a)) + hard;
  }
}

// d capped logit / d logit.
template <typename T>
DISTILL_ROW_INLINE T softcap_slope(T capped_logit, T cap) {
  const T ratio = capped_logit / cap;
  return T(1) - ratio * ratio;
}

template <typename T>
DISTILL_ROW_INLINE RowSums<T> merge(const RowSums<T>& a, const RowSums<T>& b) {
  return {a.loss + b.loss, a.q_a + b.q_a,   a.p_d + b.p_d,   a.q_d + b.q_d,
          a.mass + b.mass, a.q_lq + b.q_lq, a.p_lp + b.p_lp, a.below_max + b.below_max,
          a.q + b.q};
}

// A sum that is non-negative but for rounding, and infinite beyond kInfiniteLoss. NaN stays.
template <typename T>
DISTILL_ROW_INLINE T non_negative(T value) {
  return value <= 0 ? T(0) : (value > kInfiniteLoss<T> ? std::numeric_limits<T>::infinity() : value);
}

// What finish_row needs beside the sums.
template <typename T>
struct RowEnds {
  bool has_teacher = false;
  bool has_label = false;
  T label_logit = 0; // after bias and softcap
  T token_weight = 1;
  int64_t label = 0;
  int64_t student_best = 0; // first column of the maximum
  int64_t teacher_best = 0;
  int64_t vocab = 1;
};

// Writes column `row` of the [kNumRows, R] output.
template <typename T>
DISTILL_ROW_INLINE void finish_row(
    T* out, int64_t stride, const RowConstants<T>& c, const SideStats<T>& student, const SideStats<T>& teacher,
    const RowSums<T>& sums, const RowEnds<T>& ends) {
  const T bad = poison(student, teacher);
  const T z_loss = student.lse * student.lse;
  T hard = 0;
  if (ends.has_label) {
    hard = (T(1) - c.label_smoothing) * non_negative(student.lse - ends.label_logit);
    if (c.label_smoothing > 0) {
      const T mean_below = sums.below_max / static_cast<T>(ends.vocab) + (student.lse - student.max);
      hard += c.label_smoothing * non_negative(mean_below);
    }
    hard += bad;
  }
  const T soft =
      ends.has_teacher ? c.soft_scale * (non_negative(soft_loss(c.divergence, sums, c.skew_alpha)) + bad) : T(0);
  const T loss = c.hard_weight * (hard + c.z_loss * z_loss) + (c.soft_weight > 0 ? c.soft_weight * soft : T(0));
  out[kLoss * stride] = ends.token_weight == 0 ? T(0) : ends.token_weight * loss;
  out[kHard * stride] = hard;
  out[kSoft * stride] = soft;
  out[kZLoss * stride] = z_loss;
  out[kForwardKl * stride] =
      ends.has_teacher ? non_negative(soft_loss(Divergence::kForwardKl, sums, T(0))) + bad : T(0);
  out[kReverseKl * stride] =
      ends.has_teacher ? non_negative(soft_loss(Divergence::kReverseKl, sums, T(0))) + bad : T(0);
  out[kStudentEntropy * stride] = non_negative(-kLn2<T> * sums.q_lq) + bad;
  out[kTeacherEntropy * stride] = ends.has_teacher ? non_negative(-kLn2<T> * sums.p_lp) + bad : T(0);
  out[kAgreement * stride] = ends.has_teacher && ends.student_best == ends.teacher_best ? T(1) : T(0);
  out[kAccuracy * stride] = ends.has_label && ends.student_best == ends.label ? T(1) : T(0);
  out[kStudentLse * stride] = student.lse;
  out[kTeacherLse * stride] = ends.has_teacher ? teacher.lse : T(0);
}

template <typename T>
DISTILL_ROW_INLINE void zero_row(T* out, int64_t stride) {
  for (int64_t k = 0; k < kNumRows; ++k) {
    out[k * stride] = 0;
  }
}

} // namespace distill::losses
