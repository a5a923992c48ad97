// The CPU row kernel's body is compiled once per instruction set: the including file defines DISTILL_ROWS_NAMESPACE and
// is built with that set's flags. It includes nothing whose inline functions could leak into other files with them.
#pragma once

#include <type_traits>

#include "losses/rows/cpu/row_kernel.h"
#include "losses/rows/row_metrics.h"

namespace distill::losses::DISTILL_ROWS_NAMESPACE {

namespace {

inline constexpr int64_t kLanes = 16;

struct BFloat16 {
  uint16_t bits;
};

DISTILL_ROW_INLINE float to_compute(float x) {
  return x;
}

DISTILL_ROW_INLINE double to_compute(double x) {
  return x;
}

DISTILL_ROW_INLINE float to_compute(BFloat16 x) {
  return row_float(static_cast<int32_t>(static_cast<uint32_t>(x.bits) << 16U));
}

DISTILL_ROW_INLINE void store(float x, float* out) {
  *out = x;
}

DISTILL_ROW_INLINE void store(double x, double* out) {
  *out = x;
}

// This rounds to nearest, ties to even. NaN stays NaN.
DISTILL_ROW_INLINE void store(float x, BFloat16* out) {
  const auto bits = static_cast<uint32_t>(row_bits(x));
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  out->bits = static_cast<uint16_t>(x != x ? 0x7fc0U : rounded);
}

template <typename T>
using Lanes = T[kLanes];

// A Side is one side of one row.
template <typename T, typename Logit>
struct Side {
  const Logit* logits = nullptr;
  const void* bias = nullptr;
  ElementType bias_type = ElementType::kFloat32;
  T softcap = 0;

  T bias_at(int64_t v) const {
    switch (bias_type) {
      case ElementType::kFloat32:
        return static_cast<T>(static_cast<const float*>(bias)[v]);
      case ElementType::kFloat64:
        return static_cast<T>(static_cast<const double*>(bias)[v]);
      case ElementType::kBFloat16:
        return static_cast<T>(to_compute(static_cast<const BFloat16*>(bias)[v]));
    }
    return 0;
  }

  T at(int64_t v) const {
    const T own_bias = bias == nullptr ? T(0) : bias_at(v);
    return softcapped(static_cast<T>(to_compute(logits[v])) + own_bias, own_bias, softcap);
  }

  // Loads columns [v, v + count) after bias and softcap; lanes beyond are -inf.
  DISTILL_ROW_INLINE void load(int64_t v, int64_t count, Lanes<T>& z) const {
    if (count == kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        z[l] = static_cast<T>(to_compute(logits[v + l]));
      }
    } else {
      for (int64_t l = 0; l < kLanes; ++l) {
        z[l] = l < count ? static_cast<T>(to_compute(logits[v + l])) : -std::numeric_limits<T>::infinity();
      }
    }
    if (bias != nullptr) {
      for (int64_t l = 0; l < count; ++l) {
        z[l] += bias_at(v + l);
      }
    }
    if (softcap > 0 && bias != nullptr) {
      for (int64_t l = 0; l < count; ++l) {
        z[l] = softcapped(z[l], bias_at(v + l), softcap);
      }
    } else if (softcap > 0) {
      for (int64_t l = 0; l < count; ++l) {
        z[l] = softcapped(z[l], softcap);
      }
    }
  }
};

// Calls body(v, count) for blocks of kLanes columns.
template <typename Body>
DISTILL_ROW_INLINE void for_blocks(int64_t vocab, const Body& body) {
  int64_t v = 0;
  for (; v + kLanes <= vocab; v += kLanes) {
    body(v, kLanes);
  }
  if (v < vocab) {
    body(v, vocab - v);
  }
}

template <typename T>
DISTILL_ROW_INLINE T sum_of(const Lanes<T>& lanes) {
  T sum = 0;
  for (int64_t l = 0; l < kLanes; ++l) {
    sum += lanes[l];
  }
  return sum;
}

template <typename T, typename Logit>
T maximum(const Side<T, Logit>& side, int64_t vocab) {
  Lanes<T> best;
  for (int64_t l = 0; l < kLanes; ++l) {
    best[l] = -std::numeric_limits<T>::infinity();
  }
  for_blocks(vocab, [&](int64_t v, int64_t count) {
    Lanes<T> z;
    side.load(v, count, z);
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      best[l] = row_max(z[l], best[l]);
    }
  });
  T max = best[0];
  for (int64_t l = 1; l < kLanes; ++l) {
    max = row_max(best[l], max);
  }
  return max;
}

template <typename T, typename Logit>
int64_t first_column_of(const Side<T, Logit>& side, T value, int64_t vocab) {
  for (int64_t v = 0; v < vocab; ++v) {
    if (side.at(v) == value) {
      return v;
    }
  }
  return 0;
}

template <typename T, typename Logit>
SideSums<T> side_sums(const Side<T, Logit>& side, int64_t vocab, const RowConstants<T>& c) {
  SideSums<T> out;
  out.max = maximum(side, vocab);
  const T base = finite_max(out.max);
  Lanes<T> sum{};
  Lanes<T> unit_sum{};
  for_blocks(vocab, [&](int64_t v, int64_t count) {
    Lanes<T> z;
    side.load(v, count, z);
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      sum[l] += row_exp2((z[l] - base) * c.to_log2);
    }
    if (!c.unit_temperature) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        unit_sum[l] += row_exp2((z[l] - base) * kLog2E<T>);
      }
    }
  });
  out.sum = sum_of(sum);
  out.unit_sum = sum_of(unit_sum);
  return out;
}

template <typename T>
struct LaneSums {
  Lanes<T> loss{};
  Lanes<T> q_a{};
  Lanes<T> p_d{};
  Lanes<T> q_d{};
  Lanes<T> mass{};
  Lanes<T> q_lq{};
  Lanes<T> p_lp{};
  Lanes<T> below_max{};
  Lanes<T> q{};

  RowSums<T> total() const {
    return {sum_of(loss), sum_of(q_a),  sum_of(p_d),       sum_of(q_d), sum_of(mass),
            sum_of(q_lq), sum_of(p_lp), sum_of(below_max), sum_of(q)};
  }
};

// Computes every column's a and q, and the row's sums.
template <Divergence kDivergence, bool kTeacher, typename T, typename Logit>
RowSums<T> columns(
    const Side<T, Logit>& student, const Side<T, Logit>& teacher, const SideStats<T>& student_stats,
    const SideStats<T>& teacher_stats, const RowConstants<T>& c, int64_t vocab, T* a, T* q) {
  LaneSums<T> sums;
  const auto body = [&](int64_t v, int64_t count) {
    Lanes<T> zs;
    Lanes<T> zt;
    student.load(v, count, zs);
    if constexpr (kTeacher) {
      teacher.load(v, count, zt);
    }
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      RowSums<T> add;
      ColumnResult<T> r;
      if constexpr (!kTeacher) {
        r = column(zs[l], student_stats, c, add);
      } else {
        r = column<kDivergence, true>(zs[l], zt[l], student_stats, teacher_stats, c, add);
        sums.loss[l] += add.loss;
        sums.q_a[l] += add.q_a;
        sums.p_d[l] += add.p_d;
        sums.q_d[l] += add.q_d;
        sums.mass[l] += add.mass;
        sums.p_lp[l] += add.p_lp;
        if constexpr (kDivergence == Divergence::kSkewForwardKl) {
          sums.q[l] += add.q;
        }
      }
      sums.q_lq[l] += add.q_lq;
      a[v + l] = r.a;
      q[v + l] = r.q;
    }
    if (c.label_smoothing > 0) {
      for (int64_t l = 0; l < count; ++l) {
        sums.below_max[l] += student_stats.max - zs[l];
      }
    }
  };
  for_blocks(vocab, body);
  return sums.total();
}

// Returns the gradient of one column without the label's part.
template <Divergence kDivergence, typename T>
DISTILL_ROW_INLINE T
gradient_at(T z, T a, T q, T mean, const SideStats<T>& stats, const RowFactors<T>& f, const RowConstants<T>& c) {
  const T unit_q = c.unit_temperature ? q : unit_prob(z, stats);
  const T slope = c.student_softcap > 0 ? softcap_slope(z, c.student_softcap) : T(1);
  return general_gradient<kDivergence>(a, q, unit_q, slope, mean, f);
}

// Writes the gradient of one row from its columns' a and q.
template <Divergence kDivergence, typename T, typename Logit, typename Gradient>
void write_gradient(
    const Side<T, Logit>& student, const SideStats<T>& stats, const RowFactors<T>& factors, const RowConstants<T>& c,
    int64_t vocab, const T* a, const T* q, T mean, Gradient* out) {
  for_blocks(vocab, [&](int64_t v, int64_t count) {
    Lanes<T> gradient;
    if (c.unit_temperature && c.student_softcap == 0) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        gradient[l] = unit_gradient<kDivergence>(a[v + l], q[v + l], mean, factors);
      }
    } else {
      Lanes<T> z;
      student.load(v, count, z);
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) {
        gradient[l] = gradient_at<kDivergence>(z[l], a[v + l], q[v + l], mean, stats, factors, c);
      }
    }
    for (int64_t l = 0; l < count; ++l) {
      store(gradient[l], out + v + l);
    }
  });
}

template <typename T, typename Logit>
struct Row {
  const RowArgs& args;
  const RowConstants<T>& c;
  int64_t index;
  Side<T, Logit> student;
  Side<T, Logit> teacher;
  SideStats<T> student_stats;
  SideStats<T> teacher_stats;
  RowEpilogue<T> end;
};

template <Divergence kDivergence, bool kTeacher, typename Gradient, typename T, typename Logit>
RowSums<T> columns_and_gradient(const Row<T, Logit>& row, T* a, T* q) {
  const RowArgs& args = row.args;
  const RowSums<T> sums = columns<kDivergence, kTeacher>(
      row.student, row.teacher, row.student_stats, row.teacher_stats, row.c, args.vocab, a, q);
  if (args.gradient == nullptr) {
    return sums;
  }
  const RowFactors<T> factors = row_factors(row.c, row.student_stats, row.teacher_stats, row.end.token_weight);
  const T mean = mean_a<kDivergence>(sums.q_a, sums.q);
  auto* out = static_cast<Gradient*>(args.gradient) + row.index * args.gradient_stride;
  T label_column = 0;
  if (row.end.has_label) {
    // The label's column is computed in full, so that its 1 is subtracted before the rounding.
    const T z = row.end.label_logit;
    const T slope = row.c.student_softcap > 0 ? softcap_slope(z, row.c.student_softcap) : T(1);
    label_column =
        gradient_at<kDivergence>(z, a[row.end.label], q[row.end.label], mean, row.student_stats, factors, row.c) -
        slope * factors.label;
  }
  write_gradient<kDivergence>(row.student, row.student_stats, factors, row.c, args.vocab, a, q, mean, out);
  if (row.end.has_label) {
    store(label_column, out + row.end.label);
  }
  return sums;
}

template <typename Gradient, typename T, typename Logit>
RowSums<T> dispatch(const Row<T, Logit>& row, T* a, T* q) {
  return with_divergence(row.c.divergence, [&](auto divergence) {
    constexpr Divergence kDivergence = decltype(divergence)::value;
    if (kDivergence == Divergence::kNone && !row.end.has_teacher) {
      return columns_and_gradient<Divergence::kNone, false, Gradient>(row, a, q);
    }
    return columns_and_gradient<kDivergence, true, Gradient>(row, a, q);
  });
}

void zero_gradient(const RowArgs& args, int64_t row) {
  if (args.gradient != nullptr) {
    const auto bytes = static_cast<size_t>(
        args.gradient_type == ElementType::kBFloat16 ? 2 : (args.gradient_type == ElementType::kFloat32 ? 4 : 8));
    auto* out = static_cast<char*>(args.gradient) + static_cast<size_t>(row * args.gradient_stride) * bytes;
    std::memset(out, 0, static_cast<size_t>(args.vocab) * bytes);
  }
}

template <typename T, typename Logit, typename Gradient>
void one_row(const RowArgs& args, const RowConstants<T>& c, int64_t index, T* a, T* q) {
  T* out = static_cast<T*>(args.metrics) + index;
  if (args.targets != nullptr && args.targets[index] == kIgnoreIndex) {
    zero_metrics(out, args.metrics_stride);
    zero_gradient(args, index);
    return;
  }
  Row<T, Logit> row{.args = args, .c = c, .index = index};
  row.student = {
      static_cast<const Logit*>(args.student) + index * args.student_stride, args.student_bias, args.bias_type,
      c.student_softcap};
  row.student_stats = side_stats(side_sums(row.student, args.vocab, c), c);
  row.end.vocab = args.vocab;
  row.end.saved = args.saved == nullptr ? nullptr : static_cast<T*>(args.saved) + index;
  row.end.has_teacher = args.teacher != nullptr;
  row.end.has_label = args.targets != nullptr;
  row.end.token_weight = args.token_weights == nullptr ? T(1) : static_cast<const T*>(args.token_weights)[index];
  row.end.student_best = first_column_of(row.student, row.student_stats.max, args.vocab);
  if (row.end.has_teacher) {
    row.teacher = {
        static_cast<const Logit*>(args.teacher) + index * args.teacher_stride, args.teacher_bias, args.bias_type,
        c.teacher_softcap};
    row.teacher_stats = side_stats(side_sums(row.teacher, args.vocab, c), c);
    row.end.teacher_best = first_column_of(row.teacher, row.teacher_stats.max, args.vocab);
  }
  if (row.end.has_label) {
    row.end.label = args.targets[index];
    row.end.label_logit = row.student.at(row.end.label);
  }
  out[kTeacherCe * args.metrics_stride] = row.end.has_label && row.end.has_teacher
      ? teacher_ce(c, row.student_stats, row.teacher_stats, row.teacher.at(row.end.label))
      : T(0);
  const RowSums<T> sums = dispatch<Gradient>(row, a, q);
  finish_row(out, args.metrics_stride, c, row.student_stats, row.teacher_stats, sums, row.end);
}

template <typename T, typename Logit, typename Gradient>
void rows_as(const RowArgs& args, int64_t begin, int64_t end, void* scratch) {
  const RowConstants<T> c = row_constants<T>(args);
  const int64_t padded = (args.vocab + kLanes - 1) / kLanes * kLanes;
  auto* a = static_cast<T*>(scratch); // of each column, up to a multiple of kLanes
  T* q = a + padded;
  for (int64_t row = begin; row < end; ++row) {
    one_row<T, Logit, Gradient>(args, c, row, a, q);
  }
}

template <typename Logit>
void rows_of_logits(const RowArgs& args, int64_t begin, int64_t end, void* scratch) {
  if (args.gradient_type == ElementType::kBFloat16) {
    rows_as<float, Logit, BFloat16>(args, begin, end, scratch);
  } else {
    rows_as<float, Logit, float>(args, begin, end, scratch);
  }
}

} // namespace

void rows_range(const RowArgs& args, int64_t begin, int64_t end, void* scratch) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return rows_of_logits<float>(args, begin, end, scratch);
    case ElementType::kBFloat16:
      return rows_of_logits<BFloat16>(args, begin, end, scratch);
    case ElementType::kFloat64:
      return rows_as<double, double, double>(args, begin, end, scratch);
  }
}

} // namespace distill::losses::DISTILL_ROWS_NAMESPACE
