// The CPU kernel of rows with a sparse teacher is compiled once per instruction set with the lanes and conversions of
// row_kernel_body.h.
#pragma once

#include "losses/rows/cpu/row_kernel_body.h"
#include "losses/rows/cpu/sparse_kernel.h"
#include "losses/rows/sparse_math.h"

namespace distill::losses::DISTILL_ROWS_NAMESPACE {

namespace {

struct Float16 {
  uint16_t bits;
};

// This is exact: a float's exponent range holds all of them.
DISTILL_ROW_INLINE float to_compute(Float16 x) {
  const uint32_t magnitude = x.bits & 0x7fffU;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16U;
  const bool special = magnitude >= 0x7c00U;
  const float value = special ? row_float(static_cast<int32_t>((magnitude << 13U) | 0x7f800000U))
                              : row_float(static_cast<int32_t>(magnitude << 13U)) * 0x1p112F;
  return row_float(static_cast<int32_t>(static_cast<uint32_t>(row_bits(value)) | sign));
}

template <typename T>
T load_entry_value(const void* data, int64_t index, EntryType type) {
  switch (type) {
    case EntryType::kFloat32:
      return static_cast<T>(static_cast<const float*>(data)[index]);
    case EntryType::kBFloat16:
      return static_cast<T>(to_compute(static_cast<const BFloat16*>(data)[index]));
    case EntryType::kFloat16:
      return static_cast<T>(to_compute(static_cast<const Float16*>(data)[index]));
    case EntryType::kFloat64:
      return static_cast<T>(static_cast<const double*>(data)[index]);
  }
  return 0;
}

template <typename T, typename Logit, typename Gradient>
struct SparseRow {
  const SparseRowArgs& args;
  const RowConstants<T>& c;
  int64_t index;
  int64_t label; // -1: none
  T weight;

  int64_t teacher_row() const {
    return args.teacher.index == nullptr ? index : args.teacher.index[index];
  }

  Entry<T> entry(int64_t k) const {
    const SparseTeacher& t = args.teacher;
    Entry<T> entry;
    entry.id = t.ids[teacher_row() * t.ids_stride + k];
    entry.logit = static_cast<const T*>(args.entry_logits)[index * args.entry_stride + k];
    entry.value = load_entry_value<T>(t.values, teacher_row() * t.values_stride + k, t.value_type);
    return entry;
  }

  Logit* logits() const {
    return const_cast<Logit*>(static_cast<const Logit*>(args.rows.student)) + index * args.rows.student_stride;
  }

  T logit(int64_t v) const {
    return static_cast<T>(to_compute(logits()[v]));
  }

  Gradient* gradient() const {
    return static_cast<Gradient*>(args.rows.gradient) + index * args.rows.gradient_stride;
  }

  T* metrics() const {
    return static_cast<T*>(args.rows.metrics) + index;
  }

  T metric(TokenMetric metric) const {
    return metrics()[metric * args.rows.metrics_stride];
  }
};

template <typename T>
DISTILL_ROW_INLINE T label_part(bool is_label, T logit, const RowFactors<T>& f, const RowConstants<T>& c) {
  return is_label ? f.label * (c.student_softcap > 0 ? softcap_slope(logit, c.student_softcap) : T(1)) : T(0);
}

// Writes the gradient of all columns as if none were an entry.
template <typename T, typename Logit, typename Gradient>
void write_columns(const SparseRow<T, Logit, Gradient>& row, const ColumnSlopes<T>& slopes) {
  const Logit* logits = row.logits();
  Gradient* out = row.gradient();
  // The label is read before any gradient is written, since the gradient may overwrite the logits.
  const T label_logit = row.label >= 0 ? row.logit(row.label) : T(0);
  for_blocks(row.args.rows.vocab, [&](int64_t v, int64_t count) {
    Lanes<T> z;
    Lanes<T> gradient;
    for (int64_t l = 0; l < kLanes; ++l) {
      z[l] = l < count ? static_cast<T>(to_compute(logits[v + l])) : T(0);
    }
#pragma omp simd
    for (int64_t l = 0; l < kLanes; ++l) {
      gradient[l] = column_gradient(z[l], slopes, row.c);
    }
    for (int64_t l = 0; l < count; ++l) {
      store(gradient[l], out + v + l);
    }
  });
  if (row.label >= 0) {
    store(
        column_gradient(label_logit, slopes, row.c) - label_part(true, label_logit, slopes.factors, row.c),
        out + row.label);
  }
}

template <typename T, typename Logit, typename Gradient>
void write_entry(
    const SparseRow<T, Logit, Gradient>& row, const Entry<T>& entry, T soft, T q, const ColumnSlopes<T>& slopes) {
  store(
      sparse_gradient(soft, q, entry.logit, slopes.student, slopes.factors, row.c) -
          label_part(entry.id == row.label, entry.logit, slopes.factors, row.c),
      row.gradient() + entry.id);
}

template <typename T, typename Logit, typename Gradient>
void restore_logits(const SparseRow<T, Logit, Gradient>& row) {
  for (int64_t k = 0; k < row.args.teacher.entries; ++k) {
    const Entry<T> entry = row.entry(k);
    if (entry.id >= 0) {
      store(entry.logit, row.logits() + entry.id);
    }
  }
}

template <typename T, typename Logit, typename Gradient>
TopKEpilogue<T> topk_epilogue(
    const SparseRow<T, Logit, Gradient>& row, const SideStats<T>& tail, const Outcomes<T>& outcomes,
    const EntryExtremes<T>& e, const EntrySums<T>& s) {
  TopKEpilogue<T> end;
  const int64_t vocab = row.args.rows.vocab;
  end.tail_accuracy = row.metric(kAccuracy);
  end.tail_entropy = row.metric(kStudentEntropy);
  end.row.has_teacher = true;
  end.row.has_label = row.label >= 0;
  end.row.label = row.label;
  end.row.token_weight = row.weight;
  end.row.vocab = vocab;
  end.row.teacher_best = s.teacher_best < INT32_MAX ? row.entry(s.teacher_best).id : -2;
  end.row.student_best = tail.max > e.max_logit ? -1 : s.student_best;
  if (tail.max == e.max_logit) {
    int64_t v = 0;
    while (v + 1 < vocab && row.logit(v) != tail.max) {
      ++v;
    }
    end.row.student_best = v;
  }
  if (end.row.has_label) {
    end.row.label_logit = row.logit(row.label);
    end.label_lp = e.label_entry >= 0 ? entry_log2_prob(row.entry(e.label_entry).value, outcomes)
                                      : unlisted_label_lp(outcomes, e.min_value);
  }
  return end;
}

template <Divergence kDivergence, typename T, typename Logit, typename Gradient>
void topk_row_as(
    const SparseRow<T, Logit, Gradient>& row, const Outcomes<T>& outcomes, const TopKEpilogue<T>& end, T below_max) {
  const RowConstants<T> oc = outcome_constants(row.c);
  RowSums<T> sums;
  for (int64_t k = 0; k < row.args.teacher.entries; ++k) {
    const Entry<T> entry = row.entry(k);
    if (entry.id >= 0) {
      entry_outcome<kDivergence>(entry, outcomes, row.c, oc, sums);
    }
  }
  outcome<kDivergence>(outcomes.tail_lp, outcomes.tail_lq, oc, sums);
  sums.below_max = below_max;
  finish_topk_row(row.metrics(), row.args.rows.metrics_stride, row.c, oc, outcomes, sums, end);
  if (row.args.rows.gradient == nullptr) {
    return;
  }
  const T mean = mean_a<kDivergence>(sums.q_a, sums.q);
  ColumnSlopes<T> slopes{outcomes.student, row_factors(row.c, outcomes.student, outcomes.teacher, row.weight)};
  slopes.soft = tail_slope<kDivergence>(outcomes, mean, oc);
  write_columns(row, slopes);
  for (int64_t k = 0; k < row.args.teacher.entries; ++k) {
    const Entry<T> entry = row.entry(k);
    if (entry.id >= 0) {
      RowSums<T> unused;
      const ColumnResult<T> x = entry_outcome<kDivergence>(entry, outcomes, row.c, oc, unused);
      write_entry(row, entry, entry_slope<kDivergence>(x, mean), x.q, slopes);
    }
  }
}

template <typename T, typename Logit, typename Gradient>
void topk_row(const SparseRow<T, Logit, Gradient>& row) {
  const SparseTeacher& teacher = row.args.teacher;
  restore_logits(row);
  EntryExtremes<T> extremes;
  for (int64_t k = 0; k < teacher.entries; ++k) {
    add_entry(extremes, row.entry(k), static_cast<int>(k), row.label);
  }
  EntrySums<T> sums;
  for (int64_t k = 0; k < teacher.entries; ++k) {
    add_entry(sums, row.entry(k), static_cast<int>(k), extremes, row.c);
  }
  const SideStats<T> tail = saved_student<T>(row.args.rows, row.index);
  const T tail_mass = load_entry_value<T>(teacher.tail, row.teacher_row(), teacher.tail_type);
  const Outcomes<T> outcomes = make_outcomes(tail, tail_mass, extremes, sums, row.args.rows.vocab, row.c);
  const TopKEpilogue<T> end = topk_epilogue(row, tail, outcomes, extremes, sums);
  T below_max = 0;
  if (row.c.label_smoothing > 0) {
    for (int64_t v = 0; v < row.args.rows.vocab; ++v) {
      below_max += outcomes.student.max - row.logit(v);
    }
  }
  with_divergence(row.c.divergence, [&](auto divergence) {
    topk_row_as<decltype(divergence)::value>(row, outcomes, end, below_max);
  });
}

template <typename T, typename Logit, typename Gradient>
void sampled_row(const SparseRow<T, Logit, Gradient>& row) {
  const int64_t entries = row.args.teacher.entries;
  ColumnSlopes<T> slopes;
  slopes.student = saved_student<T>(row.args.rows, row.index);
  SampleSums<T> sums;
  for (int64_t k = 0; k < entries; ++k) {
    const Entry<T> entry = row.entry(k);
    if (entry.id >= 0) {
      sums.weight += entry.value;
      sums.weight_lq += entry.value * log2_prob(entry.logit, slopes.student, row.c);
    }
  }
  finish_sampled_row(row.metrics(), row.args.rows.metrics_stride, row.c, slopes.student, sums, row.weight);
  if (row.args.rows.gradient == nullptr) {
    return;
  }
  SideStats<T> teacher;
  teacher.lse = sums.weight;
  slopes.factors = row_factors(row.c, slopes.student, teacher, row.weight);
  slopes.soft = sums.weight;
  write_columns(row, slopes);
  for (int64_t k = 0; k < entries; ++k) {
    const Entry<T> entry = row.entry(k);
    T weight = 0; // of all samples of this column; the last of them writes the right one
    for (int64_t s = 0; s <= k; ++s) {
      const Entry<T> other = row.entry(s);
      weight += other.id == entry.id ? other.value : T(0);
    }
    if (entry.id >= 0) {
      const T q = row_exp2(log2_prob(entry.logit, slopes.student, row.c));
      write_entry(row, entry, sums.weight * q - weight, q, slopes);
    }
  }
}

template <typename T, typename Logit, typename Gradient>
void sparse_rows_as(const SparseRowArgs& args, int64_t begin, int64_t end) {
  const RowConstants<T> c = sparse_constants<T>(args);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t label = args.rows.targets == nullptr ? -1 : args.rows.targets[index];
    if (label == kIgnoreIndex) {
      zero_gradient(args.rows, index); // the row kernel has written the metrics
      continue;
    }
    const T weight = args.rows.token_weights == nullptr ? T(1) : static_cast<const T*>(args.rows.token_weights)[index];
    const SparseRow<T, Logit, Gradient> row{args, c, index, label, weight};
    if (args.teacher.tail != nullptr) {
      topk_row(row);
    } else {
      sampled_row(row);
    }
  }
}

template <typename Logit>
void sparse_rows_of_logits(const SparseRowArgs& args, int64_t begin, int64_t end) {
  if (args.rows.gradient_type == ElementType::kBFloat16) {
    sparse_rows_as<float, Logit, BFloat16>(args, begin, end);
  } else {
    sparse_rows_as<float, Logit, float>(args, begin, end);
  }
}

} // namespace

void sparse_rows_range(const SparseRowArgs& args, int64_t begin, int64_t end) {
  switch (args.rows.logits_type) {
    case ElementType::kFloat32:
      return sparse_rows_of_logits<float>(args, begin, end);
    case ElementType::kBFloat16:
      return sparse_rows_of_logits<BFloat16>(args, begin, end);
    case ElementType::kFloat64:
      return sparse_rows_as<double, double, double>(args, begin, end);
  }
}

} // namespace distill::losses::DISTILL_ROWS_NAMESPACE
