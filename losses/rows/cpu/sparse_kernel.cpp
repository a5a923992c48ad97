#include "losses/rows/cpu/sparse_kernel.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "losses/rows/sparse_math.h"

namespace distill::losses {

namespace {

using RowsRange = void (*)(const SparseRowArgs&, int64_t, int64_t);

RowsRange best_for_this_machine() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
    return avx512::sparse_rows_range;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::sparse_rows_range;
  }
#endif
  return portable::sparse_rows_range;
}

template <typename Logit>
class TakeRow {
 public:
  TakeRow(const SparseRowArgs& args, int64_t row)
      : ids_(args.teacher.ids + teacher_row(args.teacher, row) * args.teacher.ids_stride),
        entries_(args.teacher.entries),
        vocab_(args.rows.vocab),
        logits_(const_cast<Logit*>(static_cast<const Logit*>(args.rows.student)) + row * args.rows.student_stride) {}

  bool ids_are_columns() const {
    return std::all_of(ids_, ids_ + entries_, [&](int32_t id) { return id >= -1 && id < vocab_; });
  }

  template <typename T>
  void take(T* out) const {
    for (int64_t k = 0; k < entries_; ++k) {
      out[k] = ids_[k] < 0 ? T(0) : static_cast<T>(logits_[ids_[k]]);
    }
  }

  // Each entry writes its number into its column: where another entry has overwritten the number, a column is repeated.
  bool ids_are_distinct() const {
    for (int64_t k = 0; k < entries_; ++k) {
      if (ids_[k] >= 0) {
        std::memcpy(logits_ + ids_[k], &k, kTagBytes);
      }
    }
    return std::all_of(ids_, ids_ + entries_, [&](const int32_t& id) {
      const int64_t k = &id - ids_;
      return id < 0 || std::memcmp(logits_ + id, &k, kTagBytes) == 0;
    });
  }

  void remove() const {
    for (int64_t k = 0; k < entries_; ++k) {
      if (ids_[k] >= 0) {
        logits_[ids_[k]] = static_cast<Logit>(-std::numeric_limits<float>::infinity());
      }
    }
  }

 private:
  static constexpr size_t kTagBytes = sizeof(Logit);
  static_assert(kMaxEntries < (1 << 16));

  static int64_t teacher_row(const SparseTeacher& teacher, int64_t row) {
    return teacher.index == nullptr ? row : teacher.index[row];
  }

  const int32_t* ids_;
  int64_t entries_;
  int64_t vocab_;
  Logit* logits_;
};

template <typename T, typename Logit>
const char* take(const SparseRowArgs& args) {
  std::atomic<const char*> problem = nullptr;
  at::parallel_for(0, args.rows.num_rows, /*grain_size=*/16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (args.rows.targets != nullptr && args.rows.targets[row] == kIgnoreIndex) {
        continue;
      }
      const TakeRow<Logit> take(args, row);
      if (!take.ids_are_columns()) {
        problem = "teacher ids: expected -1 (no entry) or a column of the vocabulary";
        continue;
      }
      take.take(static_cast<T*>(args.entry_logits) + row * args.entry_stride);
      if (args.teacher.tail == nullptr) {
        continue;
      }
      if (!take.ids_are_distinct()) {
        problem = "teacher ids: expected a row's top-k ids to be distinct";
      }
      take.remove();
    }
  });
  return problem;
}

template <typename T>
void log_probs(const SparseRowArgs& args) {
  const RowConstants<T> c = row_constants<T>(args.rows);
  const auto entries = static_cast<int>(args.teacher.entries);
  at::parallel_for(0, args.rows.num_rows, /*grain_size=*/16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* logits = static_cast<T*>(args.entry_logits) + row * args.entry_stride;
      EntryExtremes<T> extremes;
      EntrySums<T> sums;
      for (int k = 0; k < entries; ++k) {
        add_entry(extremes, {k, logits[k], T(0)}, k, -1);
      }
      for (int k = 0; k < entries; ++k) {
        add_entry(sums, {k, logits[k], T(0)}, k, extremes, c);
      }
      const SideStats<T> tail = saved_student<T>(args.rows, row);
      const SideStats<T> all = joined_stats(tail, extremes, sums, c);
      for (int k = 0; k < entries; ++k) {
        logits[k] = log_prob(logits[k], all, c);
      }
      static_cast<T*>(args.rows.metrics)[row] = tail_prob(tail, all, extremes, args.rows.vocab, c);
    }
  });
}

} // namespace

const char* sparse_rows_cpu(const SparseRowArgs& args, SparseStage stage) {
  static const RowsRange rows_range = best_for_this_machine();
  const bool fp64 = args.rows.logits_type == ElementType::kFloat64;
  switch (stage) {
    case SparseStage::kTake:
      if (fp64) {
        return take<double, double>(args);
      }
      return args.rows.logits_type == ElementType::kFloat32 ? take<float, float>(args)
                                                            : take<float, c10::BFloat16>(args);
    case SparseStage::kLoss:
      at::parallel_for(
          0, args.rows.num_rows, /*grain_size=*/1, [&](int64_t begin, int64_t end) { rows_range(args, begin, end); });
      return nullptr;
    case SparseStage::kLogProbs:
      fp64 ? log_probs<double>(args) : log_probs<float>(args);
      return nullptr;
  }
  return nullptr;
}

} // namespace distill::losses
