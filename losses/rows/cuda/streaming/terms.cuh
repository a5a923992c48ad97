// The streaming row kernel computes these of a thread's columns once the row's normalisers are known.
#pragma once

#include "losses/rows/cuda/pairs.cuh"
#include "losses/rows/cuda/streaming/plan.h"
#include "losses/rows/cuda/streaming/running_sums.cuh"

namespace distill::losses::streaming {

// These are the terms of any call.
template <typename T, bool kTeacher>
struct AnyTerms {
  using Running = AnyRunning<T, kTeacher>; // what finds the normalisers
  const RowConstants<T>& c;
  const SideStats<T>& student;
  const SideStats<T>& teacher;

  // Computes the terms of columns and adds them to the thread's sums.
  template <Divergence kDivergence, int kCount>
  __device__ __forceinline__ void add(
      const T (&zs)[kCount], const T (&zt)[kCount], RowSums<T>& sums, ColumnResult<T> (&terms)[kCount]) const {
    for_columns(zs, [&](int k) {
      if constexpr (kTeacher) {
        terms[k] = column<kDivergence, /*kSeriesNearZero=*/true>(zs[k], zt[k], student, teacher, c, sums);
      } else {
        terms[k] = column(zs[k], student, c, sums);
      }
    });
  }

  // Computes the same terms once more.
  template <Divergence kDivergence, int kCount>
  __device__ __forceinline__ void again(
      const T (&zs)[kCount], const T (&zt)[kCount], ColumnResult<T> (&terms)[kCount]) const {
    RowSums<T> unused;
    add<kDivergence>(zs, zt, unused, terms);
  }

  // Makes of the sums over all columns those of the row, which have more terms than those of columns; of sum q a alone.
  __device__ __forceinline__ RowSums<T> finished(const RowSums<T>& sums) const {
    return sums;
  }
  __device__ __forceinline__ T finished_qa(T q_a) const {
    return q_a;
  }

  // Returns the factors of the gradient with these terms.
  __device__ __forceinline__ RowFactors<T> factors(const RowFactors<T>& of_row) const {
    return of_row;
  }
};

// This is the base-2 logarithm of a plain call's normaliser, max log2(e) + log2_sum, as a rounded number and the
// rounding error.
struct SplitNormaliser {
  float rounded;
  float rest;

  __device__ explicit SplitNormaliser(const SideStats<float>& side) {
    const float product = rounded_product(side.max, kLog2E<float>);
    rounded = product + side.log2_sum;
    const float added = rounded - product;
    rest = ((product - (rounded - added)) + (side.log2_sum - added)) + fmaf(side.max, kLog2E<float>, -product);
  }

  // Returns log2 of the logit's probability, plus rest.
  __device__ __forceinline__ float log2_prob(float logit) const {
    return fmaf(logit, kLog2E<float>, -rounded);
  }
};

// These compute log(1 + x) and exp(x) - 1 quickly for an x as small as a rounding error: the series' errors are below
// 2e-8 of the result.
__device__ __forceinline__ float log1p_near_0(float x) {
  return fabsf(x) < 1.0F / 64 ? x * fmaf(x, fmaf(x, fmaf(x, -0.25F, 1.0F / 3), -0.5F), 1.0F) : log1p(x);
}

__device__ __forceinline__ float expm1_near_0(float x) {
  return fabsf(x) < 1.0F / 64 ? x * fmaf(x, fmaf(x, fmaf(x, 1.0F / 24, 1.0F / 6), 0.5F), 1.0F) : expm1(x);
}

// In a plain call log2 q takes one operation for each column, but is too large by rest, and so q by the factor 2^rest:
// finished() and factors() correct that once for the row.
template <bool kTeacher, Divergence kIts, bool kLossAlone>
struct PlainTerms {
  using Running = PlainRunning<kTeacher, /*kFindsMax=*/!kLossAlone>;
  // With JSD each side has its own rest. log2(p / q) is then too small by `shift`, and 2^shift in p_weight makes the
  // mixture right. Other divergences use the student's rest for both sides.
  static constexpr bool kOwnUnits = kIts == Divergence::kJsd;
  // kSeriesNearZero of cluster/mode_traits.h says why.
  static constexpr bool kSeries = kIts != Divergence::kJsd;

  const SplitNormaliser student;
  const SplitNormaliser teacher;
  const float shift; // from the teacher's rest to the student's
  const RowConstants<float>& of_launch;
  RowConstants<float> c;

  __device__ PlainTerms(
      const RowConstants<float>& constants, const SideStats<float>& of_student, const SideStats<float>& of_teacher)
      : student(of_student),
        teacher(of_teacher),
        shift(kTeacher ? student.rest - teacher.rest : 0.0F),
        of_launch(constants),
        c(constants) {
    if constexpr (kOwnUnits) {
      c.p_weight = rounded_product(c.p_weight, row_exp2(shift));
    }
  }

  template <Divergence /*kDivergence*/, int kCount>
  __device__ __forceinline__ void add(
      const float (&zs)[kCount], const float (&zt)[kCount], RowSums<float>& sums,
      ColumnResult<float> (&terms)[kCount]) const {
    float lq[kCount];
    for_columns(zs, [&](int k) {
      // The floor is for products with log2 q, which are 0 where q is 0.
      lq[k] = kLossAlone && (kOwnUnits || !kTeacher) ? student.log2_prob(zs[k]) : floored(student.log2_prob(zs[k]));
    });
    if constexpr (!kTeacher) {
      for_columns(zs, [&](int k) {
        terms[k] = {0, row_exp2(lq[k]), lq[k]};
        if constexpr (!kLossAlone) {
          sums.q_lq += terms[k].q * lq[k];
        }
      });
    } else {
      float lp[kCount];
      for_columns(zt, [&](int k) { lp[k] = floored(teacher_log2_prob(zt[k])); });
      ColumnPair<float> pairs[kCount];
      if constexpr (kUsesRatio<kIts>) {
        pairs_from_ratio(lp, lq, pairs);
      } else {
        for_columns(lp, [&](int k) { pairs[k] = column_pair<kIts>(lp[k], lq[k]); });
      }
      for_columns(
          lp, [&](int k) { terms[k] = column_of_pair<kIts, kSeries, kLossAlone>(pairs[k], lp[k], lq[k], c, sums); });
    }
  }

  template <Divergence /*kDivergence*/, int kCount>
  __device__ __forceinline__ void again(
      const float (&zs)[kCount], const float (&zt)[kCount], ColumnResult<float> (&terms)[kCount]) const {
    for_columns(zs, [&](int k) {
      float lq = student.log2_prob(zs[k]);
      if constexpr (!kTeacher) {
        terms[k] = {0, row_exp2(lq), lq};
      } else {
        float lp = teacher_log2_prob(zt[k]);
        if constexpr (kIts == Divergence::kReverseKl) { // a is the difference of the two
          lq = floored(lq);
          lp = floored(lp);
        }
        const ColumnPair<float> pair = column_pair<kIts>(lp, lq);
        terms[k] = {soft_terms<kIts, kSeries>(pair, c).a, pair.q, lq};
      }
    });
  }

  __device__ __forceinline__ RowSums<float> finished(RowSums<float> sums) const {
    const float unit = row_exp2(-student.rest);
    const float teacher_unit = kOwnUnits ? row_exp2(-teacher.rest) : unit;
    sums.loss *= teacher_unit;
    sums.q_a = finished_qa(sums.q_a);
    sums.p_d *= teacher_unit;
    sums.q_d *= unit;
    sums.mass *= kOwnUnits ? 1.0F : unit;
    sums.q_lq = sums.q_lq * unit - student.rest;
    sums.p_lp = sums.p_lp * teacher_unit - (kOwnUnits ? teacher.rest : student.rest);
    if constexpr (kOwnUnits) {
      // This adds log2 of the factor in p_weight, from the rounded product: near p = q the errors of the two cancel.
      sums.loss += log1p_near_0((c.p_weight - of_launch.p_weight) / of_launch.p_weight) * kLog2E<float>;
      sums.p_d += shift;
      sums.q_d += shift;
      sums.mass += expm1_near_0(teacher.rest * kLn2<float>) - expm1_near_0(student.rest * kLn2<float>);
    }
    return sums;
  }

  __device__ __forceinline__ float finished_qa(float q_a) const {
    return q_a * row_exp2(-student.rest);
  }

  __device__ __forceinline__ RowFactors<float> factors(RowFactors<float> of_row) const {
    const float unit = row_exp2(-student.rest);
    of_row.soft *= unit;
    of_row.hard *= unit;
    return of_row;
  }

 private:
  __device__ __forceinline__ static float floored(float log2_of) {
    return row_max(log2_of, kLogFloor<float>);
  }

  // Returns log2 of the teacher's probability, plus its own rest with JSD, otherwise the student's.
  __device__ __forceinline__ float teacher_log2_prob(float logit) const {
    return kOwnUnits ? teacher.log2_prob(logit) : teacher.log2_prob(logit) + shift;
  }
};

template <typename T, bool kTeacher, typename Call>
struct TermsOf {
  using Type = AnyTerms<T, kTeacher>;
};

template <bool kTeacher, Divergence kDivergence, bool kLossAlone>
struct TermsOf<float, kTeacher, PlainCall<kDivergence, kLossAlone>> {
  using Type = PlainTerms<kTeacher, kDivergence, kLossAlone>;
};

} // namespace distill::losses::streaming
