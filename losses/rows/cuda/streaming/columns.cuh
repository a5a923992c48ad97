// A thread's columns of a row in the streaming row kernel: reading them in batches, and writing their gradient.
#pragma once

#include <limits>

#include "losses/rows/cuda/device_functions.cuh"
#include "losses/rows/cuda/streaming/plan.h"

namespace distill::losses::streaming {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

// body(k) for each index of the array, whose values are not read.
template <typename T, int kCount, typename Body>
__device__ __forceinline__ void for_columns(const T (&)[kCount], const Body& body) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    body(k);
  }
}

// Adds columns to one side's running maximum and sums. The sums are scaled once for all of these columns.
template <typename Call, typename T, int kCount>
__device__ __forceinline__ void add_to(SideSums<T>& to, const T (&z)[kCount], const RowConstants<T>& c) {
  const bool two_sums = !Call::kPlain && !c.unit_temperature;
  T max = to.max;
  for_columns(z, [&](int k) { max = row_max(max, z[k]); });
  to.sum = scaled_to(to.sum, to.max, max, c.to_log2);
  if (two_sums) {
    to.unit_sum = scaled_to(to.unit_sum, to.max, max, kLog2E<T>);
  }
  to.max = max;
  const T base = finite_max(max);
  for_columns(z, [&](int k) { to.sum += row_exp2((z[k] - base) * c.to_log2); });
  if (two_sums) {
    for_columns(z, [&](int k) { to.unit_sum += row_exp2((z[k] - base) * kLog2E<T>); });
  }
}

// A block's columns of one row: a thread takes kBatch vectors of kVector columns at a time, and loads the next ones
// before it works on these. Vectors begin at multiples of their size, so that the first one may begin before the row;
// its columns there are skipped, like those beyond the last one.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
struct Columns {
  // A kernel for one kind of call has registers for twice as many.
  static constexpr int kBatch = kVector == 1 ? 4 : (kTeacher ? 1 : 2) * (Call::kPlain ? 2 : 1);
  static constexpr int kColumns = kBatch * kVector; // of a thread at a time
  static constexpr int kStep = kThreads * kVector;
  using Terms = ColumnResult<T>[kColumns];

  const RowArgs& args;
  const RowConstants<T>& c;
  const Logit* student;
  const Logit* teacher;
  int64_t gradient; // the row's first element
  int vocab;
  int begin; // the first vector's first column, which may lie before the row

  // kVector > 1: both sides' rows begin equally far from a multiple of 16 bytes.
  __device__ Columns(const RowArgs& args, const RowConstants<T>& c, int64_t row)
      : args(args),
        c(c),
        student(static_cast<const Logit*>(args.student) + row * args.student_stride),
        teacher(kTeacher ? static_cast<const Logit*>(args.teacher) + row * args.teacher_stride : nullptr),
        gradient(row * args.gradient_stride),
        vocab(static_cast<int>(args.vocab)),
        begin(
            kVector == 1 ? 0
                         : -static_cast<int>(reinterpret_cast<uintptr_t>(student) % sizeof(Piece) / sizeof(Logit))) {}

  // Column k of a batch that begins at column `first`.
  __device__ __forceinline__ static int index(int first, int k) {
    return first + k / kVector * kStep + k % kVector;
  }

  __device__ __forceinline__ bool exists(int v) const {
    return v >= 0 && v < vocab;
  }

  // Calls body(student's logits, teacher's, first column) for each batch; columns that do not exist are -inf.
  template <typename Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    int first = begin + static_cast<int>(threadIdx.x) * kVector;
    Batch next = load(first);
#pragma unroll 1
    for (; first < vocab; first += kBatch * kStep) {
      const Batch batch = next;
      next = load(first + kBatch * kStep);
      T zs[kColumns];
      T zt[kColumns];
      for_columns(zs, [&](int k) {
        const int v = index(first, k);
        zs[k] = finished(batch.student[k / kVector].values[k % kVector], v, args.student_bias, c.student_softcap);
        if constexpr (kTeacher) {
          zt[k] = finished(batch.teacher[k / kVector].values[k % kVector], v, args.teacher_bias, c.teacher_softcap);
        } else {
          zt[k] = T(0);
        }
      });
      if (first < 0 || index(first, kColumns - 1) >= vocab) {
        mask(zs, first);
        if constexpr (kTeacher) {
          mask(zt, first);
        }
      }
      body(zs, zt, first);
    }
  }

  // `best` or, where it is smaller, the first column of a batch whose logit is the row's maximum.
  __device__ __forceinline__ void find_max(const T (&z)[kColumns], T row_maximum, int first, int& best) const {
    T max = z[0];
    for_columns(z, [&](int k) { max = row_max(max, z[k]); });
    if (max == row_maximum) {
      for_columns(z, [&](int k) { best = z[k] == row_maximum ? min(best, index(first, k)) : best; });
    }
  }

  // Takes `value` from the label's column, if it is one of the batch.
  __device__ __forceinline__ void subtract_at(int label, T value, int first, T (&z)[kColumns]) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = label - (first + b * kStep);
      if (at >= 0 && at < kVector) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          z[b * kVector + k] -= k == at ? value : T(0);
        }
      }
    }
  }

  __device__ __forceinline__ T student_logit(int v) const {
    return logit(student, v, args.student_bias, c.student_softcap);
  }

  __device__ __forceinline__ T teacher_logit(int v) const {
    return logit(teacher, v, args.teacher_bias, c.teacher_softcap);
  }

  // body(the divergence as an integral constant).
  template <typename Body>
  __device__ __forceinline__ void with_divergence(const Body& body) const {
    if constexpr (Call::kPlain) {
      body(std::integral_constant<Divergence, Call::kDivergence>());
    } else if constexpr (kTeacher) {
      losses::with_divergence(c.divergence, body);
    } else {
      body(std::integral_constant<Divergence, Divergence::kNone>());
    }
  }

  // The terms of a batch, added to the thread's sums.
  template <Divergence kDivergence>
  __device__ __forceinline__ void terms(
      const T (&zs)[kColumns], const T (&zt)[kColumns], const SideStats<T>& of_student, const SideStats<T>& of_teacher,
      RowSums<T>& add, Terms& to) const {
    for_columns(zs, [&](int k) {
      if constexpr (kTeacher) {
        // kSeriesNearZero of cluster/columns.cuh says why.
        constexpr bool kSeriesNearZero = !Call::kPlain || kDivergence != Divergence::kJsd;
        to[k] = losses::column<kDivergence, kSeriesNearZero>(zs[k], zt[k], of_student, of_teacher, c, add);
      } else {
        to[k] = losses::column(zs[k], of_student, c, add);
      }
    });
  }

  // Writes the gradient of a batch.
  __device__ __forceinline__ void write(const T (&values)[kColumns], int first) const {
    switch (args.gradient_type) {
      case ElementType::kFloat32:
        return write_as<float>(values, first);
      case ElementType::kBFloat16:
        return write_as<__nv_bfloat16>(values, first);
      case ElementType::kFloat64:
        return write_as<double>(values, first);
    }
  }

  __device__ __forceinline__ void write_zeros() const {
    for (int v = static_cast<int>(threadIdx.x); args.gradient != nullptr && v < vocab; v += kThreads) {
      store_as(args.gradient, gradient + v, args.gradient_type, T(0));
    }
  }

 private:
  template <typename Element>
  struct alignas(kVector * sizeof(Element) < 16 ? kVector * sizeof(Element) : 16) Vector {
    Element values[kVector];
  };
  using Piece = Vector<Logit>;

  struct Batch {
    Piece student[kBatch];
    Piece teacher[kTeacher ? kBatch : 1];
  };

  __device__ __forceinline__ Batch load(int first) const {
    Batch batch;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      batch.student[b] = load(student, first + b * kStep);
      if constexpr (kTeacher) {
        batch.teacher[b] = load(teacher, first + b * kStep);
      }
    }
    return batch;
  }

  __device__ __forceinline__ Piece load(const Logit* row, int v) const {
    Piece piece;
    if (v >= 0 && v + kVector <= vocab) {
      piece = *reinterpret_cast<const Piece*>(row + v);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        piece.values[k] = exists(v + k) ? row[v + k] : static_cast<Logit>(0.0F);
      }
    }
    return piece;
  }

  template <typename Element>
  __device__ __forceinline__ void write_as(const T (&values)[kColumns], int first) const {
    Element* row = static_cast<Element*>(args.gradient) + gradient;
    const bool vectors = reinterpret_cast<uintptr_t>(row + begin) % alignof(Vector<Element>) == 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int v = first + b * kStep;
      Vector<Element> out;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        out.values[k] = static_cast<Element>(values[b * kVector + k]);
      }
      if (vectors && v >= 0 && v + kVector <= vocab) {
        *reinterpret_cast<Vector<Element>*>(row + v) = out;
      } else {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          if (exists(v + k)) {
            row[v + k] = out.values[k];
          }
        }
      }
    }
  }

  // A logit after bias and softcap; anything where there is no such column.
  __device__ __forceinline__ T finished(Logit logit, int v, const void* bias, T softcap) const {
    T z = static_cast<T>(logit);
    if constexpr (Call::kPlain) {
      return z;
    }
    if (bias != nullptr && exists(v)) {
      z += load_as<T>(bias, v, args.bias_type);
    }
    return softcapped(z, softcap);
  }

  __device__ __forceinline__ void mask(T (&z)[kColumns], int first) const {
    for_columns(z, [&](int k) { z[k] = exists(index(first, k)) ? z[k] : -std::numeric_limits<T>::infinity(); });
  }

  __device__ __forceinline__ T logit(const Logit* row, int v, const void* bias, T softcap) const {
    const T z = static_cast<T>(row[v]);
    return softcapped(bias == nullptr ? z : z + load_as<T>(bias, v, args.bias_type), softcap);
  }
};

} // namespace distill::losses::streaming
