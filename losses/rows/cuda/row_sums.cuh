// Lanes and blocks hand each other a row's sums as an array of numbers.
#pragma once

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

// Every divergence has these sums of a row (see RowSums), in the order in which lanes 0, 4, 8, ... hold them.
struct SumIndex {
  static constexpr int kLoss = 0;
  static constexpr int kQa = 1;
  static constexpr int kPd = 2;
  static constexpr int kQd = 3;
  static constexpr int kMass = 4;
  static constexpr int kQlq = 5;
  static constexpr int kPlp = 6;
  static constexpr int kQ = 7; // read for skew forward KL only
  static constexpr int kCount = 8;
};

template <typename T>
__device__ __forceinline__ RowSums<T> row_sums(const T (&numbers)[SumIndex::kCount], T below_max) {
  using N = SumIndex;
  return {numbers[N::kLoss], numbers[N::kQa],  numbers[N::kPd], numbers[N::kQd], numbers[N::kMass],
          numbers[N::kQlq],  numbers[N::kPlp], below_max,       numbers[N::kQ]};
}

// Sums over the warp: lane l gets number l / 4. This takes nine shuffles instead of forty.
template <typename T>
__device__ __forceinline__ T warp_sum_of_numbers(const RowSums<T>& mine, int lane) {
  const T v[SumIndex::kCount] = {mine.loss, mine.q_a, mine.p_d, mine.q_d, mine.mass, mine.q_lq, mine.p_lp, mine.q};
  const bool upper = (lane & 16) != 0;
  T four[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    four[j] = (upper ? v[j + 4] : v[j]) + __shfl_xor_sync(kAllLanes, upper ? v[j] : v[j + 4], 16);
  }
  const bool second = (lane & 8) != 0;
  T two[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    two[j] = (second ? four[j + 2] : four[j]) + __shfl_xor_sync(kAllLanes, second ? four[j] : four[j + 2], 8);
  }
  const bool odd = (lane & 4) != 0;
  T one = (odd ? two[1] : two[0]) + __shfl_xor_sync(kAllLanes, odd ? two[0] : two[1], 4);
  one += __shfl_xor_sync(kAllLanes, one, 2);
  return one + __shfl_xor_sync(kAllLanes, one, 1);
}

} // namespace distill::losses
