// One block for a stretch of one row: each side's logits are read once and the gradient written once, 16 bytes a thread
// where all are aligned.
#pragma once

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses::backward {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = 8192; // columns
constexpr int kVectorBytes = 16;

template <typename Logit, int kSize>
struct alignas(kSize == 1 ? sizeof(Logit) : kVectorBytes) Vector {
  Logit values[kSize];
};

// The first `valid` values.
template <typename Logit, int kSize>
__device__ __forceinline__ void write(Logit* to, const Vector<Logit, kSize>& values, int valid) {
  if (valid == kSize) {
    *reinterpret_cast<Vector<Logit, kSize>*>(to) = values;
  } else {
    for (int i = 0; i < valid; ++i) {
      to[i] = values.values[i];
    }
  }
}

// The terms of a row's gradient that do not depend on the column, from the numbers that the forward pass saved.
template <typename T>
struct SavedRow {
  int64_t label; // -1: none
  bool counts; // false: the token is ignored or has no weight, and its gradient is 0
  SideStats<T> student;
  SideStats<T> teacher;
  T mean;
  RowFactors<T> factors;
};

template <bool kTeacher, typename T>
__device__ __forceinline__ SavedRow<T> load_saved(const RowArgs& a, const RowConstants<T>& c, int64_t r) {
  const auto saved = [&](SavedValue k) { return static_cast<const T*>(a.saved)[k * a.metrics_stride + r]; };
  SavedRow<T> row;
  row.label = a.targets == nullptr ? -1 : a.targets[r];
  const T weight = a.token_weights == nullptr ? T(1) : static_cast<const T*>(a.token_weights)[r];
  row.counts = row.label != kIgnoreIndex && weight != 0;
  row.student = {saved(kSavedStudentMax), saved(kSavedStudentLog2Sum), saved(kSavedStudentUnitLog2Sum)};
  row.student.lse = row.student.max + row.student.unit_log2_sum * kLn2<T>;
  if constexpr (kTeacher) {
    row.teacher.max = saved(kSavedTeacherMax);
    row.teacher.log2_sum = saved(kSavedTeacherLog2Sum);
    row.teacher.lse = row.teacher.max + row.teacher.log2_sum; // only whether it is finite matters here
  }
  row.mean = saved(kSavedMean);
  row.factors = row_factors(c, row.student, row.teacher, weight);
  return row;
}

// Of a column that is the label's or not, in a row that counts. kPlain: T = 1 and no softcap.
template <Divergence kDivergence, bool kTeacher, bool kPlain, typename T, typename Logit>
__device__ __forceinline__ T column_gradient(
    const SavedRow<T>& row, const RowConstants<T>& c, Logit student_logit, Logit teacher_logit, bool label) {
  const T zs = kPlain ? static_cast<T>(student_logit) : softcapped(static_cast<T>(student_logit), c.student_softcap);
  RowSums<T> unused;
  ColumnResult<T> x;
  if constexpr (kTeacher) {
    const T zt = kPlain ? static_cast<T>(teacher_logit) : softcapped(static_cast<T>(teacher_logit), c.teacher_softcap);
    x = column<kDivergence, true>(zs, zt, row.student, row.teacher, c, unused);
  } else {
    x = column(zs, row.student, c, unused);
  }
  const T unit_q = kPlain || c.unit_temperature ? x.q : unit_prob(zs, row.student);
  const T slope = kPlain ? T(1) : label_slope(zs, c);
  return general_gradient<kDivergence>(x.a, x.q, unit_q, slope, row.mean, row.factors) -
      (label ? row.factors.label * slope : T(0));
}

// a: see RowArgs; metrics and biases are not read. Logits and gradient [R, V] of type Logit, `saved` [kNumSavedValues,
// R]. A block takes kPerBlock columns of one row. No block reads what another block writes, so the gradient may be the
// student's logits.
template <Divergence kDivergence, bool kTeacher, bool kPlain, typename T, typename Logit, int kSize>
__global__ __launch_bounds__(kThreads) void logits_backward(
    const __grid_constant__ RowArgs a, const __grid_constant__ RowConstants<T> c) {
  const int64_t r = blockIdx.y + int64_t{blockIdx.z} * gridDim.y;
  if (r >= a.num_rows) {
    return;
  }
  const SavedRow<T> row = load_saved<kTeacher, T>(a, c, r);
  const auto one = [&](Logit student_logit, Logit teacher_logit, bool label) {
    return column_gradient<kDivergence, kTeacher, kPlain>(row, c, student_logit, teacher_logit, label);
  };
  const Logit* students = static_cast<const Logit*>(a.student) + r * a.student_stride;
  const Logit* teachers = kTeacher ? static_cast<const Logit*>(a.teacher) + r * a.teacher_stride : students;
  Logit* gradient = static_cast<Logit*>(a.gradient) + r * a.gradient_stride;
  const int64_t first = blockIdx.x * kPerBlock;
  const int64_t end = min(first + kPerBlock, a.vocab);
  for (int64_t v = first + threadIdx.x * kSize; v < end; v += kThreads * kSize) {
    const int valid = static_cast<int>(min(int64_t{kSize}, end - v));
    const int64_t from_here = row.label - v;
    const int label = from_here >= 0 && from_here < kSize ? static_cast<int>(from_here) : -1;
    Vector<Logit, kSize> out{};
    if (!row.counts) {
      write(gradient + v, out, valid);
    } else if (valid == kSize) {
      const auto zs = *reinterpret_cast<const Vector<Logit, kSize>*>(students + v);
      const auto zt = kTeacher ? *reinterpret_cast<const Vector<Logit, kSize>*>(teachers + v) : zs;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        out.values[i] = static_cast<Logit>(one(zs.values[i], zt.values[i], i == label));
      }
      write(gradient + v, out, valid);
    } else {
      for (int i = 0; i < valid; ++i) {
        gradient[v + i] = static_cast<Logit>(one(students[v + i], teachers[v + i], i == label));
      }
    }
  }
}

} // namespace distill::losses::backward
