// One block for a stretch of one row: each side's logits are read once and the gradient written once, 16 bytes a thread
// where all are aligned.
#include "losses/logits/logits_backward.h"

#include <algorithm>

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = 8192; // columns
constexpr int kVectorBytes = 16;

template <typename Logit, int kSize>
struct alignas(kSize == 1 ? sizeof(Logit) : kVectorBytes) Vector {
  Logit values[kSize];
};

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

template <Divergence kDivergence, bool kTeacher, typename T, typename Logit>
__device__ __forceinline__ T
column_gradient(const SavedRow<T>& row, const RowConstants<T>& c, Logit student_logit, Logit teacher_logit, int64_t v) {
  if (!row.counts) {
    return T(0);
  }
  const T zs = softcapped(static_cast<T>(student_logit), c.student_softcap);
  RowSums<T> unused;
  ColumnResult<T> x;
  if constexpr (kTeacher) {
    const T zt = softcapped(static_cast<T>(teacher_logit), c.teacher_softcap);
    x = column<kDivergence, true>(zs, zt, row.student, row.teacher, c, unused);
  } else {
    x = column(zs, row.student, c, unused);
  }
  const T unit_q = c.unit_temperature ? x.q : unit_prob(zs, row.student);
  const T slope = label_slope(zs, c);
  return general_gradient<kDivergence>(x.a, x.q, unit_q, slope, row.mean, row.factors) -
      (v == row.label ? row.factors.label * slope : T(0));
}

// a: see RowArgs; metrics and biases are not read. Logits and gradient [R, V] of type Logit, `saved` [kNumSavedValues,
// R]. A block takes kPerBlock columns of one row. No block reads what another block writes, so the gradient may be the
// student's logits.
template <Divergence kDivergence, bool kTeacher, typename T, typename Logit, int kSize>
__global__ __launch_bounds__(kThreads) void logits_backward(
    const __grid_constant__ RowArgs a, const __grid_constant__ RowConstants<T> c) {
  const int64_t r = blockIdx.y + int64_t{blockIdx.z} * gridDim.y;
  if (r >= a.num_rows) {
    return;
  }
  const SavedRow<T> row = load_saved<kTeacher, T>(a, c, r);
  const auto one = [&](Logit student_logit, Logit teacher_logit, int64_t v) {
    return column_gradient<kDivergence, kTeacher>(row, c, student_logit, teacher_logit, v);
  };
  const Logit* students = static_cast<const Logit*>(a.student) + r * a.student_stride;
  const Logit* teachers = kTeacher ? static_cast<const Logit*>(a.teacher) + r * a.teacher_stride : students;
  Logit* gradient = static_cast<Logit*>(a.gradient) + r * a.gradient_stride;
  const int64_t first = blockIdx.x * kPerBlock;
  const int64_t end = min(first + kPerBlock, a.vocab);
  for (int64_t v = first + threadIdx.x * kSize; v < end; v += kThreads * kSize) {
    if (v + kSize <= end) {
      const auto zs = *reinterpret_cast<const Vector<Logit, kSize>*>(students + v);
      const auto zt = kTeacher ? *reinterpret_cast<const Vector<Logit, kSize>*>(teachers + v) : zs;
      Vector<Logit, kSize> out;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        out.values[i] = static_cast<Logit>(one(zs.values[i], zt.values[i], v + i));
      }
      *reinterpret_cast<Vector<Logit, kSize>*>(gradient + v) = out;
    } else {
      for (int64_t i = v; i < end; ++i) {
        gradient[i] = static_cast<Logit>(one(students[i], teachers[i], i));
      }
    }
  }
}

bool aligned(const void* data, int64_t stride, size_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 &&
      static_cast<size_t>(stride) * element_bytes % kVectorBytes == 0;
}

template <Divergence kDivergence, bool kTeacher, typename T, typename Logit>
const char* launch_as(const RowArgs& a, cudaStream_t stream) {
  constexpr int64_t kMaxRowsOfGrid = 65535;
  const int64_t rows = std::min(a.num_rows, kMaxRowsOfGrid);
  const dim3 grid(
      static_cast<unsigned>((a.vocab + kPerBlock - 1) / kPerBlock), static_cast<unsigned>(rows),
      static_cast<unsigned>((a.num_rows + rows - 1) / rows));
  const bool vectors = aligned(a.student, a.student_stride, sizeof(Logit)) &&
      (!kTeacher || aligned(a.teacher, a.teacher_stride, sizeof(Logit))) &&
      aligned(a.gradient, a.gradient_stride, sizeof(Logit));
  const auto kernel = vectors ? logits_backward<kDivergence, kTeacher, T, Logit, kVectorBytes / sizeof(Logit)>
                              : logits_backward<kDivergence, kTeacher, T, Logit, 1>;
  kernel<<<grid, kThreads, 0, stream>>>(a, row_constants<T>(a));
  return launch_error();
}

template <typename T, typename Logit>
const char* launch(const RowArgs& a, cudaStream_t stream) {
  if (a.teacher == nullptr) {
    return launch_as<Divergence::kNone, false, T, Logit>(a, stream);
  }
  return with_divergence(effective_divergence(a.options), [&](auto divergence) {
    return launch_as<decltype(divergence)::value, true, T, Logit>(a, stream);
  });
}

} // namespace

const char* launch_logits_backward(const RowArgs& args, void* stream) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return launch<float, float>(args, cuda_stream);
    case ElementType::kBFloat16:
      return launch<float, __nv_bfloat16>(args, cuda_stream);
    case ElementType::kFloat64:
      return launch<double, double>(args, cuda_stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
