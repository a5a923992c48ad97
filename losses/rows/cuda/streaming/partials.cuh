// What the warps of a block, and the blocks of a row, hand each other in the streaming row kernel.
#pragma once

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/row_sums.cuh"
#include "losses/rows/cuda/streaming/plan.h"

namespace distill::losses::streaming {

constexpr int kMostWarps = 16; // of a block
static_assert(kMostWarps <= kWarp && kMaxBlocks <= kWarp, "a warp merges the parts, one to a lane");

// In the shared memory of each block, before its slots. Student, teacher.
template <typename T>
struct alignas(16) Partials {
  SideSums<T> sides_of_warp[2][kMostWarps];
  SideSums<T> sides_of_block[2][kMaxBlocks];
  T numbers_of_warp[SumIndex::kCount][kMostWarps];
  T numbers_of_block[SumIndex::kCount][kMaxBlocks];
  T below_max_of_warp[kMostWarps];
  T below_max_of_block[kMaxBlocks];
  int best_of_warp[2][kMostWarps]; // the first column with the maximum
  int best_of_block[2][kMaxBlocks];
};

// Bytes of dynamic shared memory in front of the slots.
template <typename T>
constexpr int partials_bytes() {
  return static_cast<int>((sizeof(Partials<T>) + 127) / 128 * 128);
}

// Merging by all threads of the `blocks` blocks of a row, of which this one is number `rank`. row_arrive() comes before
// share_sides(), so that no block stores in another one before that runs.
template <typename T, bool kTeacher, typename Call>
struct Merger {
  static constexpr bool kLossAlone = Call::kLossAlone;
  static constexpr int kWarps = Geometry<T, kTeacher, Call>::kThreads / kWarp;
  static_assert(kWarps <= kMostWarps);
  static constexpr int kSides = kTeacher ? 2 : 1;
  static constexpr int kNumbers = kLossAlone ? SumIndex::kMass + 1 : SumIndex::kCount; // the others are 0
  Partials<T>& shared;
  const RowConstants<T>& c;
  const int blocks;
  const int rank;
  const int warp;
  const int lane;

  // The sides' sums of all threads of the row, merged. The same bits in all of them.
  __device__ __forceinline__ void share_sides(const SideSums<T> (&mine)[2], SideStats<T> (&of_row)[2]) const {
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      const SideSums<T> of_warp = merged(mine[side]);
      if (lane == 0) {
        shared.sides_of_warp[side][warp] = of_warp;
      }
    }
    row_wait(blocks);
    __syncthreads();
    if (warp == 0) {
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        to_all_blocks(
            shared.sides_of_block[side], merged(lane < kWarps ? shared.sides_of_warp[side][lane] : SideSums<T>{}));
      }
    }
    meet();
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      of_row[side] = side_stats(merged(lane < blocks ? shared.sides_of_block[side][lane] : SideSums<T>{}), c);
    }
  }

  // Adds up the threads' sums and finds the first of the columns with the maxima, for number_of_row() and the rest.
  __device__ __forceinline__ void share_sums(const RowSums<T>& mine, const int (&best)[2]) const {
    const T number = warp_sum_of_numbers(mine, lane);
    if (lane % 4 == 0) {
      shared.numbers_of_warp[lane / 4][warp] = number;
    }
    if constexpr (!kLossAlone) {
      const T below_max = warp_sum(mine.below_max);
      const int best_of_warp[2] = {warp_min(best[0]), warp_min(best[1])};
      if (lane == 0) {
        shared.below_max_of_warp[warp] = below_max;
        shared.best_of_warp[0][warp] = best_of_warp[0];
        shared.best_of_warp[1][warp] = best_of_warp[1];
      }
    }
    __syncthreads();
    if (warp == 0) {
      const bool part = lane < kWarps;
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) {
        to_all_blocks(shared.numbers_of_block[k], warp_sum(part ? shared.numbers_of_warp[k][lane] : T(0)));
      }
      if constexpr (!kLossAlone) {
        to_all_blocks(shared.below_max_of_block, warp_sum(part ? shared.below_max_of_warp[lane] : T(0)));
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          to_all_blocks(shared.best_of_block[side], warp_min(part ? shared.best_of_warp[side][lane] : INT32_MAX));
        }
      }
    }
    meet();
  }

  // After share_sums(), by whole warps. k: of SumIndex.
  __device__ __forceinline__ T number_of_row(int k) const {
    return warp_sum(lane < blocks ? shared.numbers_of_block[k][lane] : T(0));
  }

  __device__ __forceinline__ RowSums<T> sums_of_row() const {
    T numbers[SumIndex::kCount] = {};
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) {
      numbers[k] = number_of_row(k);
    }
    const T below_max = kLossAlone ? T(0) : warp_sum(lane < blocks ? shared.below_max_of_block[lane] : T(0));
    return row_sums(numbers, below_max);
  }

  __device__ __forceinline__ int best_of_row(int side) const {
    return kLossAlone ? 0 : warp_min(lane < blocks ? shared.best_of_block[side][lane] : INT32_MAX);
  }

 private:
  __device__ __forceinline__ SideSums<T> merged(const SideSums<T>& part) const {
    return warp_merge(part, c.to_log2, c.unit_temperature);
  }

  // Lane n of the calling warp stores the part in block n.
  template <typename Part>
  __device__ __forceinline__ void to_all_blocks(Part* parts, const Part& part) const {
    if (lane < blocks) {
      *in_block(parts + rank, lane) = part;
    }
  }

  // All threads of the row's blocks meet, and what their first warps have stored is there.
  __device__ __forceinline__ void meet() const {
    if (blocks == 1) {
      __syncthreads();
      return;
    }
    if (warp == 0) {
      row_fence();
    }
    row_arrive(blocks);
    row_wait(blocks);
  }
};

} // namespace distill::losses::streaming
