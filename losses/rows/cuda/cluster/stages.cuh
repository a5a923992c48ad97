// These are stages of the cluster row kernel; kernel.cuh draws how the phases follow each other.
#pragma once

#include "losses/rows/cuda/cluster/kept_exponentials.cuh"
#include "losses/rows/row_metrics.h"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Writes the outputs of a row whose token is ignored. `first_thread`: of the cluster.
template <typename G, typename Logit, Mode kMode>
__device__ __forceinline__ void write_zeros(
    const RowArgs& args, const ClusterPlan& plan, const Columns<G, Logit, kMode>& columns, bool first_thread, int row) {
  if (first_thread) {
    zero_metrics(static_cast<float*>(args.metrics) + row, args.metrics_stride);
  }
  const float zeros[kVector] = {};
#pragma unroll 1
  for (int i = 0; i < plan.tiles && args.gradient != nullptr; ++i) {
    columns.write(row, i, zeros);
  }
}

// Reads both sides' logits of one of this thread's columns.
template <bool kTeacher, typename G, typename Logit, Mode kMode>
__device__ __forceinline__ void read_column(
    const Columns<G, Logit, kMode>& columns, int tile, int at, float& student_logit, float& teacher_logit) {
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

#endif

} // namespace distill::losses::cluster
