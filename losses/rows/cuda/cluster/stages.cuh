// Stages of the cluster row kernel; kernel.cuh draws how the phases follow each other.
#pragma once

#include "losses/rows/cuda/cluster/columns.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The columns of every row that this block holds.
struct Slice {
  int first; // column
  int columns; // 0 where the blocks before hold the whole row
};

__device__ __forceinline__ Slice block_slice(const RowArgs& args, const ClusterPlan& plan, int rank) {
  const int first = rank * plan.slice;
  return {first, static_cast<int>(min(max(args.vocab - first, int64_t{0}), int64_t{plan.slice}))};
}

__device__ __forceinline__ Share thread_share(const Slice& slice, int tid) {
  const int mine = tid * kVector;
  Share share;
  share.first = slice.first + mine;
  share.full = slice.columns < mine + kVector ? 0 : (slice.columns - mine - kVector) / kTileColumns + 1;
  share.part = min(max(slice.columns - mine - share.full * kTileColumns, 0), kVector);
  return share;
}

// The outputs of a row whose token is ignored. `first_thread`: of the cluster.
template <typename G, typename Logit, bool kGeneral>
__device__ __forceinline__ void write_zeros(
    const RowArgs& args, const ClusterPlan& plan, const Columns<G, Logit, kGeneral>& columns, bool first_thread,
    int row) {
  if (first_thread) {
    zero_metrics(static_cast<float*>(args.metrics) + row, args.metrics_stride);
  }
  const float zeros[kVector] = {};
#pragma unroll 1
  for (int i = 0; i < plan.tiles && args.gradient != nullptr; ++i) {
    columns.write(row, i, zeros);
  }
}

// Both sides' logits of one of this thread's columns.
template <bool kTeacher, typename G, typename Logit, bool kGeneral>
__device__ __forceinline__ void read_column(
    const Columns<G, Logit, kGeneral>& columns, int tile, int at, float& student_logit, float& teacher_logit) {
  float zs[kVector];
  float zt[kVector] = {};
  columns.student(tile, zs);
  if constexpr (kTeacher) {
    columns.teacher(tile, zt);
  }
  student_logit = zs[0];
  teacher_logit = zt[0];
#pragma unroll
  for (int j = 1; j < kVector; ++j) {
    student_logit = j == at ? zs[j] : student_logit;
    teacher_logit = j == at ? zt[j] : teacher_logit;
  }
}

// Writes the token metrics of a row, in one warp, after the row's sums have arrived.
template <bool kTeacher>
__device__ __forceinline__ void write_metrics(
    const RowArgs& args, const RowConstants<float>& c, ClusterReduce<kWarps>& reduce, int tid, int row, int parity) {
  SideStats<float> student; // merged again: cheaper than registers through two phases
  SideStats<float> teacher;
  reduce.stats(parity, c, student, teacher);
  RowEpilogue<float> end;
  const RowSums<float> all = reduce.sums(parity, c, end);
  if (tid % kWarp == 0) {
    end.has_teacher = kTeacher;
    end.has_label = args.targets != nullptr;
    end.label = end.has_label ? args.targets[row] : -1;
    end.token_weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
    end.vocab = args.vocab;
    end.saved = args.saved == nullptr ? nullptr : static_cast<float*>(args.saved) + row;
    finish_row(
        static_cast<float*>(args.metrics) + row, args.metrics_stride, c, student,
        kTeacher ? teacher : SideStats<float>{}, all, end);
  }
}

#endif

} // namespace distill::losses::cluster
