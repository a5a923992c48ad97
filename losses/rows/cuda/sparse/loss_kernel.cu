// Computes metrics and gradient of rows with a sparse teacher, one block for each row. The first warp computes the
// row's numbers from its entries. All warps write the gradient of the columns, one read and one write of each; then the
// columns of the entries and of the label are written again.
#include <algorithm>

#include "losses/rows/cuda/sparse/entries.cuh"
#include "losses/rows/cuda/sparse/kernels.h"

namespace distill::losses {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kVectorBytes = 16;
constexpr int kUnroll = 4; // vectors that a thread reads before it writes

template <typename Value, int kSize>
struct alignas(sizeof(Value) * kSize) Vector {
  Value values[kSize];
};

// Every thread has the row.
template <typename T, typename Logit, typename Gradient>
struct Row {
  const SparseRowArgs& args;
  const RowConstants<T>& c;
  RowEntries<T> entries;
  int64_t index;
  int64_t label; // -1: none
  T weight;
  Logit* logits;
  Gradient* gradient; // null: none
  T* metrics;

  __device__ __forceinline__ T logit(int64_t v) const {
    return static_cast<T>(logits[v]);
  }
};

// The first warp tells the others these numbers.
template <typename T>
struct SharedRow {
  ColumnSlopes<T> slopes;
  Outcomes<T> outcomes;
  EntryExtremes<T> extremes;
  EntrySums<T> sums;
  T mean;
  T label_logit; // read before any gradient is written, since the gradient may overwrite the logits
  bool label_is_entry;
  int first_of_warp[kWarps];
  T below_of_warp[kWarps];
};

template <int kSize, typename T, typename Logit, typename Gradient>
__device__ __forceinline__ void write_columns(const Row<T, Logit, Gradient>& row, const ColumnSlopes<T>& slopes) {
  constexpr int64_t kStep = kThreads * kSize;
  const int64_t vocab = row.args.rows.vocab;
  for (int64_t first = threadIdx.x * kSize; first < vocab; first += kStep * kUnroll) {
    Vector<Logit, kSize> z[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t v = first + u * kStep;
      if (v + kSize <= vocab) {
        z[u] = *reinterpret_cast<const Vector<Logit, kSize>*>(row.logits + v);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t v = first + u * kStep;
      if (v + kSize <= vocab) {
        Vector<Gradient, kSize> out;
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          out.values[i] = static_cast<Gradient>(column_gradient(static_cast<T>(z[u].values[i]), slopes, row.c));
        }
        *reinterpret_cast<Vector<Gradient, kSize>*>(row.gradient + v) = out;
      }
    }
  }
  for (int64_t v = vocab / kSize * kSize + threadIdx.x; v < vocab; v += kThreads) {
    row.gradient[v] = static_cast<Gradient>(column_gradient(row.logit(v), slopes, row.c));
  }
}

template <typename T>
__device__ __forceinline__ T label_part(T logit, const RowFactors<T>& f, const RowConstants<T>& c) {
  return f.label * label_slope(logit, c);
}

template <typename T, typename Logit, typename Gradient>
__device__ __forceinline__ void write_entry(
    const Row<T, Logit, Gradient>& row, const Entry<T>& entry, T soft, T q, const ColumnSlopes<T>& slopes) {
  T gradient = sparse_gradient(soft, q, entry.logit, slopes.student, slopes.factors, row.c);
  if (entry.id == row.label) {
    gradient -= label_part(entry.logit, slopes.factors, row.c);
  }
  row.gradient[entry.id] = static_cast<Gradient>(gradient);
}

template <typename T, typename Logit, typename Gradient>
__device__ __forceinline__ void write_label(const Row<T, Logit, Gradient>& row, const SharedRow<T>& shared) {
  if (threadIdx.x == 0 && row.label >= 0 && !shared.label_is_entry) {
    const T z = shared.label_logit;
    const ColumnSlopes<T>& slopes = shared.slopes;
    row.gradient[row.label] =
        static_cast<Gradient>(column_gradient(z, slopes, row.c) - label_part(z, slopes.factors, row.c));
  }
}

// The whole block finds, over all columns, the first with the logit `max`, and sum (max - logit).
template <typename T, typename Logit, typename Gradient>
__device__ void scan_columns(const Row<T, Logit, Gradient>& row, T max, SharedRow<T>& shared) {
  int first = INT32_MAX;
  T below = 0;
  for (int64_t v = threadIdx.x; v < row.args.rows.vocab; v += kThreads) {
    const T z = row.logit(v);
    first = z == max ? min(first, static_cast<int>(v)) : first;
    below += max - z;
  }
  first = warp_min(first);
  below = warp_sum(below);
  if (threadIdx.x % kWarp == 0) {
    shared.first_of_warp[threadIdx.x / kWarp] = first;
    shared.below_of_warp[threadIdx.x / kWarp] = below;
  }
  __syncthreads();
}

template <typename T, typename Logit, typename Gradient>
__device__ TopKEpilogue<T> topk_epilogue(
    const Row<T, Logit, Gradient>& row, const SideStats<T>& tail, bool scanned, const SharedRow<T>& shared) {
  const EntryExtremes<T>& e = shared.extremes;
  TopKEpilogue<T> end;
  const int64_t stride = row.args.rows.metrics_stride;
  end.tail_accuracy = row.metrics[kAccuracy * stride];
  end.tail_entropy = row.metrics[kStudentEntropy * stride];
  end.row.has_teacher = true;
  end.row.has_label = row.label >= 0;
  end.row.label = row.label;
  end.row.token_weight = row.weight;
  end.row.vocab = row.args.rows.vocab;
  end.row.teacher_best = shared.sums.teacher_best < INT32_MAX ? row.entries.id(shared.sums.teacher_best) : -2;
  end.row.student_best = tail.max > e.max_logit ? -1 : shared.sums.student_best;
  if (scanned && tail.max == e.max_logit) {
    int first = shared.first_of_warp[0];
    for (int w = 1; w < kWarps; ++w) {
      first = min(first, shared.first_of_warp[w]);
    }
    end.row.student_best = first;
  }
  if (end.row.has_label) {
    end.row.label_logit = row.logit(row.label);
    end.label_lp = e.label_entry >= 0 ? entry_log2_prob(row.entries.value(e.label_entry), shared.outcomes)
                                      : unlisted_label_lp(shared.outcomes, e.min_value);
  }
  return end;
}

// One warp computes the sums over the outcomes.
template <Divergence kDivergence, typename T>
__device__ RowSums<T> warp_outcomes(
    const RowEntries<T>& entries, const Outcomes<T>& outcomes, const RowConstants<T>& c, const RowConstants<T>& oc) {
  RowSums<T> mine;
  for (int k = static_cast<int>(threadIdx.x); k < entries.count(); k += kWarp) {
    const Entry<T> entry = entries[k];
    if (entry.id >= 0) {
      entry_outcome<kDivergence>(entry, outcomes, c, oc, mine);
    }
  }
  RowSums<T> sums = warp_merge(mine);
  outcome<kDivergence>(outcomes.tail_lp, outcomes.tail_lq, oc, sums);
  return sums;
}

template <typename T, typename Logit, typename Gradient>
__device__ void topk_numbers(const Row<T, Logit, Gradient>& row, SharedRow<T>& shared) {
  const RowConstants<T>& c = row.c;
  for (int k = threadIdx.x; k < row.entries.count(); k += kThreads) {
    if (row.entries.id(k) >= 0) {
      row.logits[row.entries.id(k)] = static_cast<Logit>(row.entries.logits[k]);
    }
  }
  const SideStats<T> tail = saved_student<T>(row.args.rows, row.index);
  if (threadIdx.x < kWarp) {
    EntryExtremes<T> extremes;
    EntrySums<T> sums;
    warp_entries(
        row.entries.count(), row.label, c, [&](int k) { return row.entries[k]; }, extremes, sums);
    if (threadIdx.x == 0) {
      const SparseTeacher& teacher = row.args.teacher;
      const T tail_mass = load_entry_value<T>(teacher.tail, row.entries.teacher_row, teacher.tail_type);
      shared.outcomes = make_outcomes(tail, tail_mass, extremes, sums, row.args.rows.vocab, c);
      shared.extremes = extremes;
      shared.sums = sums;
      shared.label_is_entry = extremes.label_entry >= 0;
    }
  }
  __syncthreads(); // the logits are back, and the outcomes known
  const bool scans = c.label_smoothing > 0 || tail.max == shared.extremes.max_logit;
  if (scans) {
    scan_columns(row, shared.outcomes.student.max, shared);
  }
  if (threadIdx.x < kWarp) {
    const RowConstants<T> oc = outcome_constants(c);
    const Outcomes<T> outcomes = shared.outcomes;
    with_divergence(c.divergence, [&](auto divergence) {
      constexpr Divergence kDivergence = decltype(divergence)::value;
      RowSums<T> sums = warp_outcomes<kDivergence>(row.entries, outcomes, c, oc);
      if (threadIdx.x == 0) {
        for (int w = 0; scans && w < kWarps; ++w) {
          sums.below_max += shared.below_of_warp[w];
        }
        finish_topk_row(
            row.metrics, row.args.rows.metrics_stride, c, oc, outcomes, sums, topk_epilogue(row, tail, scans, shared));
        shared.mean = mean_a<kDivergence>(sums.q_a, sums.q);
        shared.label_logit = row.label >= 0 ? row.logit(row.label) : T(0);
        shared.slopes.student = outcomes.student;
        shared.slopes.factors = row_factors(c, outcomes.student, outcomes.teacher, row.weight);
        shared.slopes.soft = tail_slope<kDivergence>(outcomes, shared.mean, oc);
      }
    });
  }
  __syncthreads(); // the slopes are known
}

template <typename T, typename Logit, typename Gradient>
__device__ void write_topk_entries(const Row<T, Logit, Gradient>& row, const SharedRow<T>& shared) {
  const RowConstants<T> oc = outcome_constants(row.c);
  for (int k = threadIdx.x; k < row.entries.count(); k += kThreads) {
    const Entry<T> entry = row.entries[k];
    if (entry.id < 0) {
      continue;
    }
    with_divergence(row.c.divergence, [&](auto divergence) {
      constexpr Divergence kDivergence = decltype(divergence)::value;
      RowSums<T> unused;
      const ColumnResult<T> x = entry_outcome<kDivergence>(entry, shared.outcomes, row.c, oc, unused);
      write_entry(row, entry, entry_slope<kDivergence>(x, shared.mean), x.q, shared.slopes);
    });
  }
}

template <typename T, typename Logit, typename Gradient>
__device__ void sampled_numbers(const Row<T, Logit, Gradient>& row, SharedRow<T>& shared) {
  if (threadIdx.x < kWarp) {
    const SideStats<T> student = saved_student<T>(row.args.rows, row.index);
    SampleSums<T> sums;
    int not_label = 1;
    for (int k = static_cast<int>(threadIdx.x); k < row.entries.count(); k += kWarp) {
      const Entry<T> entry = row.entries[k];
      if (entry.id >= 0) {
        sums.weight += entry.value;
        sums.weight_lq += entry.value * log2_prob(entry.logit, student, row.c);
        not_label = entry.id == row.label ? 0 : not_label;
      }
    }
    sums = {warp_sum(sums.weight), warp_sum(sums.weight_lq)};
    not_label = warp_min(not_label);
    if (threadIdx.x == 0) {
      finish_sampled_row(row.metrics, row.args.rows.metrics_stride, row.c, student, sums, row.weight);
      SideStats<T> teacher;
      teacher.lse = sums.weight;
      shared.slopes.student = student;
      shared.slopes.factors = row_factors(row.c, student, teacher, row.weight);
      shared.slopes.soft = sums.weight;
      shared.label_logit = row.label >= 0 ? row.logit(row.label) : T(0);
      shared.label_is_entry = not_label == 0;
    }
  }
  __syncthreads();
}

// The weights of a repeated column are added in the order of the samples by each thread that has one of them, and all
// of these write the same number.
template <typename T, typename Logit, typename Gradient>
__device__ void write_sampled_entries(const Row<T, Logit, Gradient>& row, const SharedRow<T>& shared) {
  for (int k = threadIdx.x; k < row.entries.count(); k += kThreads) {
    const Entry<T> entry = row.entries[k];
    if (entry.id < 0) {
      continue;
    }
    T weight = 0;
    for (int s = 0; s < row.entries.count(); ++s) {
      if (row.entries.id(s) == entry.id) {
        weight += row.entries.value(s);
      }
    }
    const T q = row_exp2(log2_prob(entry.logit, shared.slopes.student, row.c));
    write_entry(row, entry, shared.slopes.soft * q - weight, q, shared.slopes);
  }
}

// args: see SparseRowArgs; block r takes row r. `vectors`: logits and gradient begin at multiples of a vector.
template <bool kTopK, typename T, typename Logit, typename Gradient>
__global__ __launch_bounds__(kThreads) void sparse_loss(
    const __grid_constant__ SparseRowArgs args, const __grid_constant__ RowConstants<T> c, bool vectors) {
  __shared__ __align__(16) unsigned char storage[sizeof(SharedRow<T>)];
  auto& shared = *reinterpret_cast<SharedRow<T>*>(storage);
  const int64_t index = blockIdx.x;
  const RowArgs& a = args.rows;
  const int64_t target = a.targets == nullptr ? -1 : a.targets[index];
  Gradient* gradient = a.gradient == nullptr ? nullptr : static_cast<Gradient*>(a.gradient) + index * a.gradient_stride;
  if (target == kIgnoreIndex) { // the row kernel has written the metrics
    for (int64_t v = threadIdx.x; gradient != nullptr && v < a.vocab; v += kThreads) {
      gradient[v] = static_cast<Gradient>(0.0F);
    }
    return;
  }
  const Row<T, Logit, Gradient> row{
      args,
      c,
      RowEntries<T>(args, index),
      index,
      target,
      a.token_weights == nullptr ? T(1) : static_cast<const T*>(a.token_weights)[index],
      const_cast<Logit*>(static_cast<const Logit*>(a.student)) + index * a.student_stride,
      gradient,
      static_cast<T*>(a.metrics) + index};
  if constexpr (kTopK) {
    topk_numbers(row, shared);
  } else {
    sampled_numbers(row, shared);
  }
  if (gradient == nullptr) {
    return;
  }
  if (vectors) {
    write_columns<kVectorBytes / sizeof(Logit)>(row, shared.slopes);
  } else {
    write_columns<1>(row, shared.slopes);
  }
  __syncthreads(); // the columns are written; some are written again
  if constexpr (kTopK) {
    write_topk_entries(row, shared);
  } else {
    write_sampled_entries(row, shared);
  }
  write_label(row, shared);
}

bool aligned(const void* data, int64_t stride, size_t element_bytes, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && static_cast<size_t>(stride) * element_bytes % bytes == 0;
}

template <typename T, typename Logit, typename Gradient>
const char* launch(const SparseRowArgs& args, cudaStream_t stream) {
  constexpr int kSize = kVectorBytes / sizeof(Logit);
  const RowArgs& a = args.rows;
  const bool vectors = aligned(a.student, a.student_stride, sizeof(Logit), kVectorBytes) &&
      aligned(a.gradient, a.gradient_stride, sizeof(Gradient), sizeof(Gradient) * kSize);
  const bool topk = args.teacher.tail != nullptr;
  const auto kernel = topk ? sparse_loss<true, T, Logit, Gradient> : sparse_loss<false, T, Logit, Gradient>;
  kernel<<<static_cast<unsigned>(a.num_rows), kThreads, 0, stream>>>(args, sparse_constants<T>(args), vectors);
  return launch_error();
}

} // namespace

const char* launch_sparse_loss(const SparseRowArgs& args, cudaStream_t stream) {
  const bool rounds = args.rows.gradient_type == ElementType::kBFloat16;
  switch (args.rows.logits_type) {
    case ElementType::kFloat32:
      return rounds ? launch<float, float, __nv_bfloat16>(args, stream) : launch<float, float, float>(args, stream);
    case ElementType::kBFloat16: // logits are rounded for bf16 students only
      return rounds || args.rows.gradient == nullptr ? launch<float, __nv_bfloat16, __nv_bfloat16>(args, stream)
                                                     : "bf16 logits with a gradient that is not bf16";
    case ElementType::kFloat64:
      return launch<double, double, double>(args, stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
