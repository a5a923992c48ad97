// The warps of a block, and the blocks of a row, hand each other these in the streaming row kernel.
#pragma once

#include "losses/rows/cuda/row_sums.cuh"
#include "losses/rows/cuda/streaming/plan.h"

namespace distill::losses::streaming {

constexpr int kMostWarps = 16; // of a block
static_assert(kMostWarps <= kWarp && kMaxBlocks <= kWarp, "a warp merges the parts, one to a lane");

// These are sums of exponentials of some of a row's columns: student, teacher. Plain calls have no unit_sum.
template <typename T, bool kPlain>
struct alignas(16) SidesPart {
  T max[2];
  T sum[2];
  T unit_sum[2];
};

template <typename T>
struct alignas(16) SidesPart<T, true> {
  T max[2];
  T sum[2];
};

// These are the sums of terms of some of a row's columns.
template <typename T, typename Call>
struct alignas(16) SumsPart {
  static constexpr int kCount = SumIndex::kCount;
  static constexpr int kQa = SumIndex::kQa;
  T numbers[kCount];
  T below_max;
  int best[2]; // the first column with the maximum: student, teacher
};

// For the loss alone there are sum q a, the sum that the divergence is made of, and the mass.
template <typename T, Divergence kIts>
struct alignas(16) SumsPart<T, PlainCall<kIts, true>> {
  static constexpr int kCount = 3;
  static constexpr int kQa = 0;
  T numbers[kCount];

  // Returns which of the row's sums the number is. Sums: RowSums<T>, which may be const.
  template <int kNumber, typename Sums>
  __device__ __forceinline__ static auto& member(Sums& sums) {
    if constexpr (kNumber == kQa) {
      return sums.q_a;
    } else if constexpr (kNumber == 2) {
      return sums.mass;
    } else if constexpr (kIts == Divergence::kForwardKl) {
      return sums.p_d;
    } else if constexpr (kIts == Divergence::kReverseKl) {
      return sums.q_d;
    } else {
      return sums.loss;
    }
  }
};

// Partials lie in the shared memory of each block, before its slots. The warps' sums take the place of their sides,
// which are merged by then.
template <typename T, typename Call>
struct alignas(16) Partials {
  using Sides = SidesPart<T, Call::kPlain>;
  using Sums = SumsPart<T, Call>;
  union {
    Sides sides_of_warp[kMostWarps];
    Sums sums_of_warp[kMostWarps];
  };
  Sides sides_of_block[kMaxBlocks];
  Sums sums_of_block[kMaxBlocks];
  uint64_t sides_barrier; // at which the blocks' parts arrive
  uint64_t sums_barrier;
};

// Returns the bytes of dynamic shared memory in front of the slots.
template <typename T, typename Call>
constexpr int partials_bytes() {
  return static_cast<int>((sizeof(Partials<T, Call>) + 127) / 128 * 128);
}

// This is half of a Hopper multiprocessor's shared memory without the driver's part: 113 KiB.
static_assert(
    partials_bytes<float, PlainCall<Divergence::kJsd, true>>() +
            7 * Geometry<float, true, PlainCall<Divergence::kJsd, true>>::kGroupBytes <=
        113 << 10,
    "JSD with the loss alone has seven slots, docs/loss_head_notes.md");

} // namespace distill::losses::streaming
