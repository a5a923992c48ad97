// The warps of a block tell each other about a row in shared memory. The workers hand in partial results; the reducing
// warp hands out the row's normalisers and the mean slope.
#pragma once

#include "losses/rows/cuda/cluster/plan.h"
#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/row_sums.cuh"

namespace distill::losses::cluster {

constexpr int kWarps = kClusterThreads / kWarp; // of workers
static_assert(kWarps == kMaxCluster, "merges are over 16 parts");

// A SidePartial is one side's maximum and sums in a warp, relative to `base`; or in a block, where `base` is the
// maximum. With kKeepsExponentials a logit near the log-sum-exp takes the place of the maximum.
struct alignas(16) SidePartial {
  float max = -INFINITY;
  float sum = 0;
  float unit_sum = 0;
  float base = 0;
};

// A block's part has the numbers that only the row's metrics need. They are 0 and kNoColumn where the block has neither
// the label nor a maximum.
struct alignas(16) EpiloguePartial {
  float below_max;
  float label_logit;
  int student_best;
  int teacher_best;
};
constexpr int kNoColumn = INT32_MAX;

// These are a row's numbers for the workers.
struct alignas(16) RowNumbers {
  SideStats<float> student;
  SideStats<float> teacher;
  RowFactors<float> factors;
  int label_thread; // the worker with the label's column; -1: another block has it
  int label_column; // in the block's slice
  float label_logit; // the student's, where no worker has it any more (kKeepsExponentials)
  int unused;
};

// Two rows are in the pipeline at a time, so every slot exists twice: the first index is the parity of the row's turn.
struct alignas(16) RowSlots {
  uint64_t stats_in[2]; // every warp has handed in its part of the normalisers
  uint64_t stats_full[2]; // every block has sent its part
  uint64_t row_ready[2]; // `row` is written
  uint64_t sums_in[2];
  uint64_t sums_full[2];
  uint64_t mean_ready[2];
  SidePartial stats_of_warp[2][2][kWarps]; // [parity][side][warp]
  SidePartial stats_of_block[2][2][kMaxCluster];
  float numbers_of_warp[2][SumIndex::kCount][kWarps];
  float numbers_of_block[2][SumIndex::kCount][kMaxCluster];
  float below_max_of_warp[2][kWarps];
  EpiloguePartial rest_of_block[2][kMaxCluster];
  RowNumbers row[2];
  float4 label[2]; // of the label's column: kept_a() or its gradient, kept_q(), the softcap's slope, the logit
  float mean[2]; // mean_a()
  int best[2][2]; // [parity][side], the first column with the maximum
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Every thread of the block calls it first; a barrier of the whole cluster must follow.
__device__ __forceinline__ void init_slots(RowSlots& slots) {
  const int tid = static_cast<int>(threadIdx.x);
  auto* words = reinterpret_cast<uint32_t*>(&slots);
  for (int k = tid; k < static_cast<int>(sizeof(slots) / 4); k += static_cast<int>(blockDim.x)) {
    words[k] = 0; // slots of blocks that do not exist add nothing
  }
  __syncthreads();
  if (tid == 0) {
    for (int parity = 0; parity < 2; ++parity) {
      barrier_init(slots.stats_in + parity, kWarps * kArrivalsOfWarp);
      barrier_init(slots.stats_full + parity, 1);
      barrier_init(slots.row_ready + parity, kArrivalsOfWarp);
      barrier_init(slots.sums_in + parity, kWarps * kArrivalsOfWarp);
      barrier_init(slots.sums_full + parity, 1);
      barrier_init(slots.mean_ready + parity, kArrivalsOfWarp);
    }
    publish_barriers();
  }
  if (tid < kMaxCluster) {
    for (int k = 0; k < 4; ++k) {
      slots.stats_of_block[k / 2][k % 2][tid].max = -INFINITY;
      slots.rest_of_block[k / 2][tid] = {0, 0, kNoColumn, kNoColumn};
      slots.best[k / 2][k % 2] = kNoColumn;
    }
  }
}

// Sums two numbers over the warp: lanes 0 to 15 get the first sum, the others the second.
__device__ __forceinline__ float warp_sum_of_two(float first, float second, int lane) {
  const bool upper = lane >= 16;
  float sum = (upper ? second : first) + __shfl_xor_sync(kAllLanes, upper ? first : second, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return sum;
}

// A worker's warp hands in its part of the normalisers: maxima and bases (the same in all lanes) and each lane's sums.
__device__ __forceinline__ void hand_in_stats(
    RowSlots& slots, int parity, int warp, int lane, const SidePartial& student, const SidePartial& teacher,
    const RowConstants<float>& c) {
  const bool upper = lane >= 16;
  SidePartial part;
  part.max = upper ? teacher.max : student.max;
  part.base = upper ? teacher.base : student.base;
  part.sum = warp_sum_of_two(student.sum, teacher.sum, lane);
  part.unit_sum = c.unit_temperature ? 0.0F : warp_sum_of_two(student.unit_sum, teacher.unit_sum, lane);
  if (lane % 16 == 0) {
    slots.stats_of_warp[parity][lane / 16][warp] = part;
  }
  warp_arrive(slots.stats_in + parity, lane);
}

// A worker's warp hands in its lanes' sums, after it has stored the label's and the best columns if it has them.
__device__ __forceinline__ void hand_in_sums(
    RowSlots& slots, int parity, int warp, int lane, const RowSums<float>& mine, const RowConstants<float>& c) {
  const float number = warp_sum_of_numbers(mine, lane);
  if (lane % 4 == 0) {
    slots.numbers_of_warp[parity][lane / 4][warp] = number;
  }
  if (c.label_smoothing > 0) {
    const float below_max = warp_sum(mine.below_max);
    if (lane == 0) {
      slots.below_max_of_warp[parity][warp] = below_max;
    }
  }
  warp_arrive(slots.sums_in + parity, lane);
}

#endif

} // namespace distill::losses::cluster
