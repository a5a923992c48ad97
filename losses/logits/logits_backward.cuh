// One block takes a stretch of a row. It reads each side's logits once and writes the gradient once, 16 bytes a thread
// where all rows begin equally far from a multiple of 16 bytes.
#pragma once

#include "losses/rows/cuda/device_functions.cuh"
#include "losses/rows/row_alignment.h"

namespace distill::losses::backward {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = 8192; // columns

template <typename Logit, int kSize>
struct alignas(kSize == 1 ? sizeof(Logit) : kVectorBytes) Vector {
  Logit values[kSize];
};

// A SavedRow has the terms of a row's gradient that do not depend on the column, made from what the forward pass saved.
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

// Returns whether T = 1 and there is no softcap: the kernel is compiled for that.
inline bool is_plain(const LossOptions& o) {
  return o.temperature == 1 && o.student_softcap == 0 && o.teacher_softcap == 0;
}

// Returns whether the rows of both sides and of the gradient begin equally far from multiples of kVectorBytes.
inline bool begin_alike(const RowArgs& a) {
  const auto like_student = [&](const void* data, int64_t stride) {
    return rows_begin_alike(data, stride, a.student, a.student_stride, element_bytes(a.logits_type));
  };
  return like_student(a.gradient, a.gradient_stride) &&
      (a.teacher == nullptr || like_student(a.teacher, a.teacher_stride));
}

// Returns the number of blocks of a row, whose first vector may begin up to a vector before the row.
inline int64_t blocks_of_row(int64_t vocab, int vector) {
  return (vocab + vector - 1 + kPerBlock - 1) / kPerBlock;
}

// Returns the gradient of a column, which is the label's or not, in a row that counts. kPlain: is_plain().
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
// R]. A block takes kPerBlock columns of one row. kSize: columns that a thread takes at a time: 1, or kVectorBytes of
// them; more than 1 needs begin_alike(). No block reads what another block writes, so the gradient may be the student's
// logits.
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
  const int64_t before =
      kSize == 1 ? 0 : static_cast<int64_t>(reinterpret_cast<uintptr_t>(students) % kVectorBytes / sizeof(Logit));
  const int64_t first = blockIdx.x * kPerBlock - before;
  const int64_t end = min(first + kPerBlock, a.vocab);
  for (int64_t v = first + threadIdx.x * kSize; v < end; v += kThreads * kSize) {
    if (v >= 0 && v + kSize <= end) {
      Vector<Logit, kSize> out{};
      if (row.counts) {
        const auto zs = *reinterpret_cast<const Vector<Logit, kSize>*>(students + v);
        const auto zt = kTeacher ? *reinterpret_cast<const Vector<Logit, kSize>*>(teachers + v) : zs;
        const int64_t from_here = row.label - v;
        const int label = from_here >= 0 && from_here < kSize ? static_cast<int>(from_here) : -1;
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          out.values[i] = static_cast<Logit>(one(zs.values[i], zt.values[i], i == label));
        }
      }
      *reinterpret_cast<Vector<Logit, kSize>*>(gradient + v) = out;
    } else {
#pragma unroll 1
      for (int64_t k = max(v, int64_t{0}); k < min(v + kSize, end); ++k) {
        gradient[k] =
            row.counts ? static_cast<Logit>(one(students[k], teachers[k], k == row.label)) : static_cast<Logit>(0.0F);
      }
    }
  }
}

} // namespace distill::losses::backward
