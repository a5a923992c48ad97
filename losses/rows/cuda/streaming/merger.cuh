// The threads of a row merge their numbers over a warp, over its block, and over the row's blocks.
#pragma once

#include "losses/rows/cuda/instructions.cuh"
#include "losses/rows/cuda/streaming/partials.cuh"

namespace distill::losses::streaming {

// All threads of the `blocks` blocks of a row merge; this block is number `rank` of them. expect_parts() comes first,
// and then the others in their order.
template <typename T, bool kTeacher, typename Call>
struct Merger {
  static constexpr bool kLossAlone = Call::kLossAlone;
  static constexpr bool kHasSums = kTeacher || !kLossAlone; // the labels' loss alone needs only the student's side
  static constexpr int kWarps = Geometry<T, kTeacher, Call>::kThreads / kWarp;
  static_assert(kWarps <= kMostWarps);
  static constexpr int kSides = kTeacher ? 2 : 1;
  using Shared = Partials<T, Call>;
  using Sides = typename Shared::Sides;
  using Sums = typename Shared::Sums;
  Shared& shared;
  const RowConstants<T>& c;
  const int blocks;
  const int rank;
  const int warp;
  const int lane;

  // Makes the barriers at which the blocks' parts arrive, and begins to wait until all blocks have theirs.
  __device__ __forceinline__ void expect_parts() const {
    if (blocks > 1) {
      if (threadIdx.x == 0) {
        expect_messages(&shared.sides_barrier, static_cast<uint32_t>(blocks * sizeof(Sides)));
        expect_messages(&shared.sums_barrier, static_cast<uint32_t>(blocks * sizeof(Sums)));
      }
      row_arrive(blocks);
    }
  }

  // Returns the sides' sums of all threads of the row, merged. All of them get the same bits.
  __device__ __forceinline__ void share_sides(const SideSums<T> (&mine)[2], SideStats<T> (&of_row)[2]) const {
    const Sides of_warp = merged(mine);
    if (lane == 0) {
      shared.sides_of_warp[warp] = of_warp;
    }
    row_wait(blocks);
    __syncthreads();
    if (warp == 0) {
      to_all_blocks(shared.sides_of_block, merged(shared.sides_of_warp, kWarps), &shared.sides_barrier);
    }
    wait_for_parts(&shared.sides_barrier);
    const Sides all = merged(shared.sides_of_block, blocks);
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      of_row[side] = side_stats(side_sums(all, side), c);
    }
  }

  // Adds up the threads' sums and finds the first of the columns with the maxima, for row_qa() and the rest.
  __device__ __forceinline__ void share_sums(const RowSums<T>& mine, const int (&best)[2]) const {
    if constexpr (kHasSums) {
      store_sums_of_warp(mine, best);
      __syncthreads();
      if (warp == 0) {
        Sums part;
#pragma unroll
        for (int k = 0; k < Sums::kCount; ++k) {
          part.numbers[k] = sum_of(shared.sums_of_warp, kWarps, k);
        }
        if constexpr (!kLossAlone) {
          part.below_max = below_max_of(shared.sums_of_warp, kWarps);
          part.best[0] = best_of(shared.sums_of_warp, kWarps, 0);
          part.best[1] = best_of(shared.sums_of_warp, kWarps, 1);
        }
        to_all_blocks(shared.sums_of_block, part, &shared.sums_barrier);
      }
      wait_for_parts(&shared.sums_barrier);
    }
  }

  // After share_sums(), whole warps ask for sum q a over the row's columns, before finished_qa(), and sum q (for skew
  // forward KL only).
  __device__ __forceinline__ T row_qa() const {
    return sum_of(shared.sums_of_block, blocks, Sums::kQa);
  }
  __device__ __forceinline__ T row_q() const {
    return kLossAlone ? T(1) : sum_of(shared.sums_of_block, blocks, SumIndex::kQ);
  }

  __device__ __forceinline__ RowSums<T> row_sums() const {
    T numbers[Sums::kCount] = {};
#pragma unroll
    for (int k = 0; kHasSums && k < Sums::kCount; ++k) {
      numbers[k] = sum_of(shared.sums_of_block, blocks, k);
    }
    if constexpr (kLossAlone) {
      static_assert(Sums::kCount == 3);
      RowSums<T> sums;
      Sums::template member<0>(sums) = numbers[0];
      Sums::template member<1>(sums) = numbers[1];
      Sums::template member<2>(sums) = numbers[2];
      return sums;
    } else {
      return losses::row_sums(numbers, below_max_of(shared.sums_of_block, blocks));
    }
  }

  __device__ __forceinline__ int row_best(int side) const {
    if constexpr (kLossAlone) {
      return 0;
    } else {
      return best_of(shared.sums_of_block, blocks, side);
    }
  }

 private:
  // Merges the sums of the warp's threads. xor shuffles add in one fixed order, so all lanes agree to the last bit.
  __device__ __forceinline__ Sides merged(const SideSums<T> (&parts)[2]) const {
    Sides all{};
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      all.max[side] = lanes_max(parts[side].max);
      all.sum[side] = scaled_to(parts[side].sum, parts[side].max, all.max[side], c.to_log2);
    }
    warp_sums(all.sum);
    if constexpr (!Call::kPlain) {
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        all.unit_sum[side] = scaled_to(parts[side].unit_sum, parts[side].max, all.max[side], kLog2E<T>);
      }
      if (!c.unit_temperature) {
        warp_sums(all.unit_sum);
      }
    }
    return all;
  }

  // Merges `count` parts.
  __device__ __forceinline__ Sides merged(const Sides* parts, int count) const {
    SideSums<T> mine[2];
    if (lane < count) {
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        mine[side] = side_sums(parts[lane], side);
      }
    }
    return merged(mine);
  }

  __device__ __forceinline__ static SideSums<T> side_sums(const Sides& part, int side) {
    if constexpr (Call::kPlain) {
      return {part.max[side], part.sum[side], T(0)};
    } else {
      return {part.max[side], part.sum[side], part.unit_sum[side]};
    }
  }

  // Sums both sides' numbers over the warp, step by step together: each step waits for the one before.
  __device__ __forceinline__ static void warp_sums(T (&values)[2]) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      T others[2];
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        others[side] = __shfl_xor_sync(kAllLanes, values[side], offset);
      }
#pragma unroll
      for (int side = 0; side < kSides; ++side) {
        values[side] += others[side];
      }
    }
  }

  __device__ __forceinline__ void store_sums_of_warp(const RowSums<T>& mine, const int (&best)[2]) const {
    Sums& part = shared.sums_of_warp[warp];
    if constexpr (kLossAlone) {
      const T numbers[] = {
          warp_sum(Sums::template member<0>(mine)), warp_sum(Sums::template member<1>(mine)),
          warp_sum(Sums::template member<2>(mine))};
      if (lane == 0) {
#pragma unroll
        for (int k = 0; k < Sums::kCount; ++k) {
          part.numbers[k] = numbers[k];
        }
      }
    } else {
      const T number = warp_sum_of_numbers(mine, lane);
      if (lane % 4 == 0) {
        part.numbers[lane / 4] = number;
      }
      const T below_max = warp_sum(mine.below_max);
      const int best_of_warp[2] = {warp_min(best[0]), warp_min(best[1])};
      if (lane == 0) {
        part.below_max = below_max;
        part.best[0] = best_of_warp[0];
        part.best[1] = best_of_warp[1];
      }
    }
  }

  // A whole warp sums over `count` parts.
  __device__ __forceinline__ T sum_of(const Sums* parts, int count, int k) const {
    return warp_sum(lane < count ? parts[lane].numbers[k] : T(0));
  }
  __device__ __forceinline__ T below_max_of(const Sums* parts, int count) const {
    return warp_sum(lane < count ? parts[lane].below_max : T(0));
  }
  __device__ __forceinline__ int best_of(const Sums* parts, int count, int side) const {
    return warp_min(lane < count ? parts[lane].best[side] : INT32_MAX);
  }

  // Lane n of the calling warp sends the part to block n.
  template <typename Part>
  __device__ __forceinline__ void to_all_blocks(Part* parts, const Part& part, uint64_t* barrier) const {
    if (blocks == 1) {
      if (lane == 0) {
        parts[0] = part;
      }
    } else if (lane < blocks) {
      send_message(parts + rank, lane, part, barrier);
    }
  }

  // Waits for the parts of all of the row's blocks.
  __device__ __forceinline__ void wait_for_parts(uint64_t* barrier) const {
    if (blocks == 1) {
      __syncthreads();
    } else {
      wait_for_messages(barrier);
    }
  }
};

} // namespace distill::losses::streaming
