// A thread of the streaming row kernel finds the maximum and the normalising sums of its columns.
#pragma once

#include <limits>

#include "losses/rows/cuda/instructions.cuh"

namespace distill::losses::streaming {

// Calls body(k) for each index of the array, whose values are not read.
template <typename T, int kCount, typename Body>
__device__ __forceinline__ void for_columns(const T (&)[kCount], const Body& body) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    body(k);
  }
}

template <typename T, int kCount>
__device__ __forceinline__ T largest_of(const T (&z)[kCount]) {
  T largest = z[0];
  for_columns(z, [&](int k) { largest = row_max(largest, z[k]); });
  return largest;
}

// One side's sums of any call are relative to a base that changes only where the maximum is far above it. The base is a
// logit, so that the sums are at least 1.
template <typename T>
struct AnySums {
  T max = -std::numeric_limits<T>::infinity();
  T base = T(-1e30); // finite, since -inf - -inf is NaN; logits far below it count as -inf
  T sum = 0;
  T unit_sum = 0; // at T = 1, where the temperature is another

  // Adds columns. far: see far_above().
  template <int kCount>
  __device__ __forceinline__ void add(const T (&z)[kCount], T far, const RowConstants<T>& c) {
    max = row_max(max, largest_of(z));
    if (max > base + far) {
      sum = scaled_to(sum, base, max, c.to_log2);
      if (!c.unit_temperature) {
        unit_sum = scaled_to(unit_sum, base, max, kLog2E<T>);
      }
      base = max;
    }
    for_columns(z, [&](int k) { sum += row_exp2((z[k] - base) * c.to_log2); });
    if (!c.unit_temperature) {
      for_columns(z, [&](int k) { unit_sum += row_exp2((z[k] - base) * kLog2E<T>); });
    }
  }

  // Returns the sums relative to the maximum.
  __device__ __forceinline__ SideSums<T> side_sums(const RowConstants<T>& c) const {
    if (!(sum > 0)) { // 0 where all logits count as -inf, NaN where one is NaN
      return {-std::numeric_limits<T>::infinity(), sum, unit_sum};
    }
    return {max, scaled_to(sum, base, max, c.to_log2), scaled_to(unit_sum, base, max, kLog2E<T>)};
  }
};

// A logit may be this far above the base: 2^96 for it in a sum leaves room for the sum of 2^30 columns.
template <typename T>
__device__ __forceinline__ T far_above(const RowConstants<T>& c) {
  return T(96) / row_max(c.to_log2, kLog2E<T>);
}

// These are both sides' sums of any call.
template <typename T, bool kTeacher>
struct AnyRunning {
  const RowConstants<T>& c;
  T far;
  AnySums<T> student;
  AnySums<T> teacher;

  __device__ explicit AnyRunning(const RowConstants<T>& c) : c(c), far(far_above(c)) {}

  template <int kCount>
  __device__ __forceinline__ void add(const T (&zs)[kCount], const T (&zt)[kCount]) {
    student.add(zs, far, c);
    if constexpr (kTeacher) {
      teacher.add(zt, far, c);
    }
  }

  __device__ __forceinline__ SideSums<T> student_sums() const {
    return student.side_sums(c);
  }

  __device__ __forceinline__ SideSums<T> teacher_sums() const {
    return teacher.side_sums(c);
  }
};

// One side's sum of a plain call is of 2^(z log2(e) - scaled). A logit below -kLargestLogit counts as -inf, and
// one above kLargestLogit makes the sum NaN.
template <bool kFindsMax>
struct PlainSum {
  static constexpr float kFar = 64; // 2^30 columns that are at most 2^kFar have a sum that is finite

  float max = -std::numeric_limits<float>::infinity(); // where kFindsMax
  float base = -kLargestLogit;
  float scaled = -kLargestLogit * kLog2E<float>; // base log2(e), rounded
  float sum = 0;

  template <int kCount>
  __device__ __forceinline__ void add(const float (&z)[kCount]) {
    if constexpr (kFindsMax) {
      max = row_max(max, largest_of(z));
    }
    for_columns(z, [&](int k) { sum += row_exp2(fmaf(z[k], kLog2E<float>, -scaled)); });
  }

  // After add(), before which the sum was `before`: makes the largest of its columns the base if it is far above it.
  template <int kCount>
  __device__ __forceinline__ void raise_base(const float (&z)[kCount], float before) {
    const float largest = largest_of(z);
    if (fmaf(largest, kLog2E<float>, -scaled) > kFar) {
      const float old = scaled;
      base = largest <= kLargestLogit ? largest : std::numeric_limits<float>::quiet_NaN();
      scaled = rounded_product(base, kLog2E<float>);
      sum = before * row_exp2(old - scaled);
      add(z);
    }
  }

  // Returns the sum relative to the maximum if it is found, otherwise to the columns' log-sum-exp, roughly.
  __device__ __forceinline__ SideSums<float> side_sums() const {
    if (!(sum > 0)) { // 0 where all logits count as -inf, NaN where one is NaN
      return {-std::numeric_limits<float>::infinity(), sum, 0};
    }
    const float reference = kFindsMax ? max : fmaf(row_log2(sum), kLn2<float>, base);
    return {reference, sum * row_exp2(fmaf(-reference, kLog2E<float>, scaled)), 0};
  }
};

// These are both sides' sums of a plain call.
template <bool kTeacher, bool kFindsMax>
struct PlainRunning {
  static constexpr float kMost = 0x1p80F; // beyond that, and where it is infinite, a sum may need another base

  PlainSum<kFindsMax> student;
  PlainSum<kFindsMax> teacher;

  __device__ explicit PlainRunning(const RowConstants<float>& /*c*/) {}

  template <int kCount>
  __device__ __forceinline__ void add(const float (&zs)[kCount], const float (&zt)[kCount]) {
    const float student_before = student.sum;
    const float teacher_before = teacher.sum;
    student.add(zs);
    if constexpr (kTeacher) {
      teacher.add(zt);
    }
    if (row_max(student.sum, teacher.sum) > kMost) {
      student.raise_base(zs, student_before);
      if constexpr (kTeacher) {
        teacher.raise_base(zt, teacher_before);
      }
    }
  }

  __device__ __forceinline__ SideSums<float> student_sums() const {
    return student.side_sums();
  }

  __device__ __forceinline__ SideSums<float> teacher_sums() const {
    return teacher.side_sums();
  }
};

} // namespace distill::losses::streaming
