#pragma once

#include <algorithm>

#include "trainer/models/ops/device.cuh"

// The division of a matrix's rows among threads: threadIdx.x runs over a row, threadIdx.y over the block's rows. A row
// is handled by a power of two of lanes of one warp, or by a whole block, which reduces through shared memory.
namespace distill::models {

constexpr int kMaxRowThreads = 512;
constexpr int kMinRowThreads = 128;

// `packs`: of a row. `held`: packs of its row that a thread holds in registers; a longer row is read again.
inline dim3 row_block_shape(int64_t packs, int held, int64_t max_threads = kMaxRowThreads) {
  const int64_t wanted = ceil_div<int64_t>(packs, held);
  if (wanted > kWarp) {
    return dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(wanted, kWarp) * kWarp, max_threads)));
  }
  unsigned lanes = 1;
  while (lanes < wanted) {
    lanes *= 2;
  }
  return dim3(lanes, kMinRowThreads / lanes);
}

// Each warp of a row's threads has one value here. Consecutive reductions of a block need two of these in turn: one
// warp may still read the first while another warp writes the second.
template <typename acc_t>
using RowScratch = acc_t[kMaxRowThreads / kWarp];

template <typename acc_t, typename Reduce>
__device__ __forceinline__ acc_t row_reduce(acc_t value, acc_t* shared, acc_t start, const Reduce& reduce) {
  const int width = blockDim.x <= kWarp ? static_cast<int>(blockDim.x) : kWarp;
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  if (blockDim.x <= kWarp) {
    return value;
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  acc_t total = start;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    total = reduce(total, shared[warp]);
  }
  return total;
}

// Sum over the threads of a row; the same bits on each.
template <typename acc_t>
__device__ __forceinline__ acc_t row_sum(acc_t value, acc_t* shared) {
  return row_reduce(value, shared, acc_t(0), [](acc_t a, acc_t b) { return a + b; });
}

} // namespace distill::models
