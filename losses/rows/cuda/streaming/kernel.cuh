// The streaming row kernel: any type and alignment, up to 2^30 columns, and any device. A block takes one row, and
// reads it for its normalisers, for its sums, and, where the gradient needs the mean of a, once more for its gradient;
// other gradients (forward KL, cross-entropy) are written with the second reading.
#pragma once

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/streaming/columns.cuh"
#include "losses/rows/row_metrics.h"

namespace distill::losses::streaming {

// What the warps of a block hand each other, in shared memory.
template <typename T>
struct BlockPartials {
  SideSums<T> student[kWarps];
  SideSums<T> teacher[kWarps];
  SideStats<T> student_stats;
  SideStats<T> teacher_stats;
  RowSums<T> sums[kWarps];
  T mean; // mean_a()
  int best[2][kWarps]; // the first column with the maximum: [side][warp]
};

// Merges parts[0 .. kWarps) by the block's first warp; its first lane returns the whole.
template <typename T>
__device__ __forceinline__ SideSums<T> merge_warps(const SideSums<T>* parts, const RowConstants<T>& c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return warp_merge(lane < kWarps ? parts[lane] : SideSums<T>{}, c.to_log2, c.unit_temperature);
}

// args: see RowArgs, logits of type Logit; block r takes row r. Call: AnyCall or PlainCall.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
__global__ __launch_bounds__(kThreads, sizeof(T) == 4 ? 2 : 1) void rows(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<T> c) {
  auto& shared = *static_cast<BlockPartials<T>*>(block_memory<sizeof(BlockPartials<T>)>());
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool first_thread = threadIdx.x == 0;
  using RowColumns = Columns<T, Logit, kTeacher, kVector, Call>;
  using Terms = typename RowColumns::Terms;
  const RowColumns columns(args, c, row);
  T* out = static_cast<T*>(args.metrics) + row;
  const int64_t label = args.targets == nullptr ? 0 : args.targets[row];
  if (args.targets != nullptr && label == kIgnoreIndex) {
    if (first_thread) {
      zero_metrics(out, args.metrics_stride);
    }
    columns.write_zeros();
    return;
  }
  const int target = static_cast<int>(label);
  // Read before any gradient is written, since the gradient may overwrite the logits.
  const T label_logit = args.targets == nullptr ? T(0) : columns.student_logit(target);

  // First pass: normalisers.
  {
    SideSums<T> student;
    SideSums<T> teacher;
    columns.for_each([&](const auto& zs, const auto& zt, int /*first*/) {
      add_to<Call>(student, zs, c);
      if constexpr (kTeacher) {
        add_to<Call>(teacher, zt, c);
      }
    });
    const SideSums<T> student_of_warp = warp_merge(student, c.to_log2, c.unit_temperature);
    const SideSums<T> teacher_of_warp = kTeacher ? warp_merge(teacher, c.to_log2, c.unit_temperature) : teacher;
    if (lane == 0) {
      shared.student[warp] = student_of_warp;
      shared.teacher[warp] = teacher_of_warp;
    }
    __syncthreads();
    if (warp == 0) {
      const SideSums<T> student_of_row = merge_warps(shared.student, c);
      const SideSums<T> teacher_of_row = kTeacher ? merge_warps(shared.teacher, c) : SideSums<T>{};
      if (lane == 0) {
        shared.student_stats = side_stats(student_of_row, c);
        shared.teacher_stats = kTeacher ? side_stats(teacher_of_row, c) : SideStats<T>{};
      }
    }
    __syncthreads();
  }
  const SideStats<T> student = shared.student_stats;
  const SideStats<T> teacher = shared.teacher_stats;
  const T weight = args.token_weights == nullptr ? T(1) : static_cast<const T*>(args.token_weights)[row];
  const RowFactors<T> factors = row_factors(c, student, teacher, weight);
  const T of_label = factors.label * label_slope(label_logit, c);
  const auto write_gradient = [&](auto divergence, const auto& zs, const Terms& terms, T mean, int first) {
    constexpr Divergence kDivergence = decltype(divergence)::value;
    T gradient[RowColumns::kColumns];
    for_columns(zs, [&](int k) {
      const ColumnResult<T>& x = terms[k];
      if constexpr (Call::kPlain) {
        gradient[k] = unit_gradient<kDivergence>(x.a, x.q, mean, factors);
      } else {
        const T unit_q = c.unit_temperature ? x.q : unit_prob(zs[k], student);
        gradient[k] = general_gradient<kDivergence>(x.a, x.q, unit_q, label_slope(zs[k], c), mean, factors);
      }
    });
    if (args.targets != nullptr) {
      columns.subtract_at(target, of_label, first, gradient);
    }
    columns.write(gradient, first);
  };

  // Second pass: the sums over the columns, the first columns with the maxima, and the gradient that needs no sum.
  {
    RowSums<T> mine;
    int student_best = INT32_MAX;
    int teacher_best = INT32_MAX;
    columns.for_each([&](const auto& zs, const auto& zt, int first) {
      columns.with_divergence([&](auto divergence) {
        constexpr Divergence kDivergence = decltype(divergence)::value;
        Terms terms;
        columns.template terms<kDivergence>(zs, zt, student, teacher, mine, terms);
        if constexpr (!kUsesQa<kDivergence>) {
          if (args.gradient != nullptr) {
            write_gradient(divergence, zs, terms, T(0), first);
          }
        }
      });
      if (!Call::kPlain && c.label_smoothing > 0) {
        for_columns(
            zs, [&](int k) { mine.below_max += columns.exists(columns.index(first, k)) ? student.max - zs[k] : T(0); });
      }
      columns.find_max(zs, student.max, first, student_best);
      if constexpr (kTeacher) {
        columns.find_max(zt, teacher.max, first, teacher_best);
      }
    });
    const RowSums<T> warp_sums = warp_merge(mine);
    student_best = warp_min(student_best);
    teacher_best = warp_min(teacher_best);
    if (lane == 0) {
      shared.sums[warp] = warp_sums;
      shared.best[0][warp] = student_best;
      shared.best[1][warp] = teacher_best;
    }
    __syncthreads();
  }
  if (warp == 0) {
    const RowSums<T> sums = warp_merge(lane < kWarps ? shared.sums[lane] : RowSums<T>{});
    const int student_best = warp_min(lane < kWarps ? shared.best[0][lane] : INT32_MAX);
    const int teacher_best = warp_min(lane < kWarps ? shared.best[1][lane] : INT32_MAX);
    if (lane == 0) {
      shared.mean =
          c.divergence == Divergence::kSkewForwardKl ? mean_a<Divergence::kSkewForwardKl>(sums.q_a, sums.q) : sums.q_a;
      RowEpilogue<T> ends;
      ends.has_teacher = kTeacher;
      ends.has_label = args.targets != nullptr;
      ends.label = target;
      ends.label_logit = label_logit;
      ends.token_weight = weight;
      ends.student_best = student_best;
      ends.teacher_best = teacher_best;
      ends.vocab = args.vocab;
      ends.saved = args.saved == nullptr ? nullptr : static_cast<T*>(args.saved) + row;
      finish_row(out, args.metrics_stride, c, student, teacher, sums, ends);
      out[kTeacherCe * args.metrics_stride] =
          kTeacher && ends.has_label ? teacher_ce(c, student, teacher, columns.teacher_logit(target)) : T(0);
    }
  }

  // Third pass: the gradient that needs the mean.
  if (args.gradient != nullptr) {
    columns.with_divergence([&](auto divergence) {
      constexpr Divergence kDivergence = decltype(divergence)::value;
      if constexpr (kUsesQa<kDivergence>) {
        __syncthreads();
        const T mean = shared.mean;
        columns.for_each([&](const auto& zs, const auto& zt, int first) {
          RowSums<T> unused;
          Terms terms;
          columns.template terms<kDivergence>(zs, zt, student, teacher, unused, terms);
          write_gradient(divergence, zs, terms, mean, first);
        });
      }
    });
  }
}

} // namespace distill::losses::streaming
