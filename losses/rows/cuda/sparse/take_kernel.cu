// Takes entries out of the logits, and computes log-probabilities of a teacher's own top-k, with a small block a row.
#include "losses/rows/cuda/sparse/kernels.h"

#include "losses/rows/cuda/sparse/entries.cuh"

namespace distill::losses {

namespace {

constexpr int kTakeThreads = 256;

template <typename Logit>
__device__ __forceinline__ Logit minus_infinity() {
  return static_cast<Logit>(-std::numeric_limits<float>::infinity());
}

// A Tag holds the number of an entry as bits of a logit's width.
template <int kBytes>
struct Tag;
template <>
struct Tag<2> {
  using Type = unsigned short;
};
template <>
struct Tag<4> {
  using Type = unsigned int;
};
template <>
struct Tag<8> {
  using Type = unsigned long long;
};

// args: see SparseRowArgs; block r takes row r. Each entry of top-k writes its number into its column, so that a
// number that another entry has overwritten shows a repeated column.
template <typename T, typename Logit>
__global__ __launch_bounds__(kTakeThreads) void take_entries(const __grid_constant__ SparseRowArgs args) {
  using TagType = typename Tag<sizeof(Logit)>::Type;
  const int64_t row = blockIdx.x;
  if (args.rows.targets != nullptr && args.rows.targets[row] == kIgnoreIndex) {
    return;
  }
  const RowEntries<T> entries(args, row);
  Logit* logits = const_cast<Logit*>(static_cast<const Logit*>(args.rows.student)) + row * args.rows.student_stride;
  T* out = static_cast<T*>(args.entry_logits) + row * args.entry_stride;
  for (int k = threadIdx.x; k < entries.count(); k += kTakeThreads) {
    const int64_t id = entries.id(k);
    if (id < -1 || id >= args.rows.vocab) {
      stop("teacher ids: expected -1 (no entry) or a column of the vocabulary", row, id);
    }
    out[k] = id < 0 ? T(0) : static_cast<T>(logits[id]);
  }
  if (args.teacher.tail == nullptr) {
    return;
  }
  volatile auto* tags = reinterpret_cast<volatile TagType*>(logits);
  __syncthreads(); // all logits are read
  for (int k = threadIdx.x; k < entries.count(); k += kTakeThreads) {
    if (entries.id(k) >= 0) {
      tags[entries.id(k)] = static_cast<TagType>(k);
    }
  }
  __syncthreads(); // all numbers are written
  for (int k = threadIdx.x; k < entries.count(); k += kTakeThreads) {
    if (entries.id(k) >= 0 && tags[entries.id(k)] != static_cast<TagType>(k)) {
      stop("teacher ids: expected a row's top-k ids to be distinct", row, entries.id(k));
    }
  }
  __syncthreads(); // all numbers are compared
  for (int k = threadIdx.x; k < entries.count(); k += kTakeThreads) {
    if (entries.id(k) >= 0) {
      logits[entries.id(k)] = minus_infinity<Logit>();
    }
  }
}

// args: entry_logits, saved, metrics [R]; a warp, block r, takes row r.
template <typename T>
__global__ __launch_bounds__(kWarp) void log_probs(
    const __grid_constant__ SparseRowArgs args, const __grid_constant__ RowConstants<T> c) {
  const int64_t row = blockIdx.x;
  const auto count = static_cast<int>(args.teacher.entries);
  T* logits = static_cast<T*>(args.entry_logits) + row * args.entry_stride;
  EntryExtremes<T> extremes;
  EntrySums<T> sums;
  warp_entries(
      count, -1, c,
      [&](int k) {
        return Entry<T>{k, logits[k], T(0)};
      },
      extremes, sums);
  const SideStats<T> tail = saved_student<T>(args.rows, row);
  const SideStats<T> all = joined_stats(tail, extremes, sums, c);
  for (int k = threadIdx.x; k < count; k += kWarp) {
    logits[k] = log_prob(logits[k], all, c);
  }
  if (threadIdx.x == 0) {
    static_cast<T*>(args.rows.metrics)[row] = tail_prob(tail, all, extremes, args.rows.vocab, c);
  }
}

} // namespace

const char* launch_take_entries(const SparseRowArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.rows.num_rows);
  switch (args.rows.logits_type) {
    case ElementType::kFloat32:
      take_entries<float, float><<<blocks, kTakeThreads, 0, stream>>>(args);
      break;
    case ElementType::kBFloat16:
      take_entries<float, __nv_bfloat16><<<blocks, kTakeThreads, 0, stream>>>(args);
      break;
    case ElementType::kFloat64:
      take_entries<double, double><<<blocks, kTakeThreads, 0, stream>>>(args);
      break;
  }
  return launch_error();
}

const char* launch_log_probs(const SparseRowArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.rows.num_rows);
  if (args.rows.logits_type == ElementType::kFloat64) {
    log_probs<double><<<blocks, kWarp, 0, stream>>>(args, row_constants<double>(args.rows));
  } else {
    log_probs<float><<<blocks, kWarp, 0, stream>>>(args, row_constants<float>(args.rows));
  }
  return launch_error();
}

} // namespace distill::losses
