// The streaming row kernel: a row is read three times by a cluster of blocks, for its normalisers, for its sums, and
// for its gradient. The second and third reads hit L2, since the rows in flight are few enough to stay there. Any type,
// width and alignment, and any device; before compute capability 9 a cluster is one block.
#pragma once

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/streaming/columns.cuh"

namespace distill::losses::streaming {

// What a block knows of a row, in shared memory, where the other blocks of its cluster read it.
template <typename T>
struct BlockPartials {
  SideSums<T> student[kWarps];
  SideSums<T> teacher[kWarps];
  SideSums<T> student_of_block;
  SideSums<T> teacher_of_block;
  RowSums<T> sums[kWarps];
  RowSums<T> sums_of_block;
  int best[2][kWarps]; // the first column with the maximum: [side][warp]
  int best_of_block[2];
};

// The blocks of a cluster, or one block.
struct Cluster {
  int size;
  int rank; // of this block

  __device__ __forceinline__ void barrier() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      cluster_barrier_of_threads();
      return;
    }
#endif
    __syncthreads();
  }

  // The same shared variable of another block.
  template <typename V>
  __device__ __forceinline__ const V* of(const V* mine, int block) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (size > 1) {
      return in_block(mine, block);
    }
#endif
    return mine;
  }
};

// Merges parts[0 .. kWarps) by the block's first warp; its first lane returns the whole.
template <typename T>
__device__ __forceinline__ SideSums<T> merge_warps(const SideSums<T>* parts, const RowConstants<T>& c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  return warp_merge(lane < kWarps ? parts[lane] : SideSums<T>{}, c.to_log2, c.unit_temperature);
}

// args: see RowArgs, logits of type Logit; the blocks of cluster r take row r, each a slice of `slice` columns. Call:
// AnyCall or PlainCall.
template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
__global__ __launch_bounds__(kThreads, sizeof(T) == 4 ? 2 : 1) void rows(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<T> c, int cluster_size, int64_t slice) {
  auto& shared = *static_cast<BlockPartials<T>*>(block_memory<sizeof(BlockPartials<T>)>());
  const Cluster cluster{cluster_size, static_cast<int>(blockIdx.x) % cluster_size};
  const int64_t row = static_cast<int>(blockIdx.x) / cluster_size;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool first_thread = threadIdx.x == 0;
  const Columns<T, Logit, kTeacher, kVector, Call> columns(args, c, row, slice, cluster.rank);
  T* out = static_cast<T*>(args.metrics) + row;
  const int64_t target = args.targets == nullptr ? 0 : args.targets[row];
  if (args.targets != nullptr && target == kIgnoreIndex) { // for all blocks of the cluster
    if (cluster.rank == 0 && first_thread) {
      zero_metrics(out, args.metrics_stride);
    }
    columns.write_zeros();
    return;
  }
  // Read before any gradient is written, since the gradient may overwrite the logits.
  const T label_logit = args.targets == nullptr ? T(0) : columns.student_logit(target);

  // First pass: normalisers.
  {
    SideSums<T> student;
    SideSums<T> teacher;
    columns.for_each([&](const auto& zs, const auto& zt, int64_t /*first*/) {
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
      const SideSums<T> student_of_block = merge_warps(shared.student, c);
      const SideSums<T> teacher_of_block = kTeacher ? merge_warps(shared.teacher, c) : SideSums<T>{};
      if (lane == 0) {
        shared.student_of_block = student_of_block;
        shared.teacher_of_block = teacher_of_block;
      }
    }
    cluster.barrier();
  }
  SideSums<T> student_sums = *cluster.of(&shared.student_of_block, 0);
  SideSums<T> teacher_sums = *cluster.of(&shared.teacher_of_block, 0);
  for (int block = 1; block < cluster.size; ++block) {
    student_sums = merge(student_sums, *cluster.of(&shared.student_of_block, block), c.to_log2);
    if constexpr (kTeacher) {
      teacher_sums = merge(teacher_sums, *cluster.of(&shared.teacher_of_block, block), c.to_log2);
    }
  }
  const SideStats<T> student = side_stats(student_sums, c);
  const SideStats<T> teacher = kTeacher ? side_stats(teacher_sums, c) : SideStats<T>{};

  // Second pass: the sums over the columns, and the first columns with the maxima.
  {
    RowSums<T> mine;
    int student_best = INT32_MAX;
    int teacher_best = INT32_MAX;
    columns.for_each([&](const auto& zs, const auto& zt, int64_t first) {
      columns.with_divergence([&](auto divergence) {
        for_columns(zs, [&](int k) {
          columns.template column<decltype(divergence)::value>(zs[k], zt[k], student, teacher, mine);
        });
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
    if (warp == 0) {
      const RowSums<T> block_sums = warp_merge(lane < kWarps ? shared.sums[lane] : RowSums<T>{});
      student_best = warp_min(lane < kWarps ? shared.best[0][lane] : INT32_MAX);
      teacher_best = warp_min(lane < kWarps ? shared.best[1][lane] : INT32_MAX);
      if (lane == 0) {
        shared.sums_of_block = block_sums;
        shared.best_of_block[0] = student_best;
        shared.best_of_block[1] = teacher_best;
      }
    }
    cluster.barrier();
  }
  RowSums<T> sums = *cluster.of(&shared.sums_of_block, 0);
  for (int block = 1; block < cluster.size; ++block) {
    sums = merge(sums, *cluster.of(&shared.sums_of_block, block));
  }
  const T weight = args.token_weights == nullptr ? T(1) : static_cast<const T*>(args.token_weights)[row];
  if (cluster.rank == 0 && first_thread) {
    RowEpilogue<T> ends;
    ends.has_teacher = kTeacher;
    ends.has_label = args.targets != nullptr;
    ends.label = target;
    ends.label_logit = label_logit;
    ends.token_weight = weight;
    int best[2] = {INT32_MAX, INT32_MAX};
    for (int block = 0; block < cluster.size; ++block) {
      const int* theirs = cluster.of(shared.best_of_block, block);
      best[0] = min(best[0], theirs[0]);
      best[1] = min(best[1], theirs[1]);
    }
    ends.student_best = best[0];
    ends.teacher_best = best[1];
    ends.vocab = args.vocab;
    ends.saved = args.saved == nullptr ? nullptr : static_cast<T*>(args.saved) + row;
    finish_row(out, args.metrics_stride, c, student, teacher, sums, ends);
    out[kTeacherCe * args.metrics_stride] =
        kTeacher && ends.has_label ? teacher_ce(student, teacher, columns.teacher_logit(target)) : T(0);
  }
  // Third pass: the gradient.
  if (args.gradient != nullptr) {
    const RowFactors<T> factors = row_factors(c, student, teacher, weight);
    const T mean =
        c.divergence == Divergence::kSkewForwardKl ? mean_a<Divergence::kSkewForwardKl>(sums.q_a, sums.q) : sums.q_a;
    const T of_label = factors.label * label_slope(label_logit, c);
    columns.for_each([&](const auto& zs, const auto& zt, int64_t first) {
      T gradient[columns.kColumns];
      columns.with_divergence([&](auto divergence) {
        constexpr Divergence kDivergence = decltype(divergence)::value;
        for_columns(zs, [&](int k) {
          RowSums<T> unused;
          const ColumnResult<T> x = columns.template column<kDivergence>(zs[k], zt[k], student, teacher, unused);
          if constexpr (Call::kPlain) {
            gradient[k] = unit_gradient<kDivergence>(x.a, x.q, mean, factors);
          } else {
            const T unit_q = c.unit_temperature ? x.q : unit_prob(zs[k], student);
            const T slope = label_slope(zs[k], c);
            gradient[k] = general_gradient<kDivergence>(x.a, x.q, unit_q, slope, mean, factors);
          }
        });
      });
      if (args.targets != nullptr) {
        columns.subtract_at(target, of_label, first, gradient);
      }
      columns.write(gradient, first);
    });
  }
  if (cluster.size > 1) {
    cluster.barrier(); // no block ends while another one may still read its shared memory
  }
}

} // namespace distill::losses::streaming
