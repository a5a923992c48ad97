#include "trainer/models/ops/embedding_kernel.h"

#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 128;

// Finds the first index after `begin` whose token differs.
__device__ __forceinline__ int64_t run_end(const int64_t* sorted, int64_t begin, int64_t count) {
  const int64_t token = sorted[begin];
  int64_t low = begin + 1;
  int64_t high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (sorted[middle] == token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// A block sums one run's rows over kThreads packs of columns; blocks whose position is not the start of a run return at
// once.
template <typename T, int V>
__global__ __launch_bounds__(kThreads) void embedding_backward(
    const __grid_constant__ EmbeddingBackwardArgs args, int64_t tiles) {
  using acc_t = acc_type<T>;
  const int64_t begin = blockIdx.x / tiles;
  const int64_t token = args.sorted[begin];
  if (begin > 0 && args.sorted[begin - 1] == token) {
    return;
  }
  if (token < 0 || token >= args.vocab) {
    __trap();
  }
  const int64_t column = (blockIdx.x % tiles * kThreads + threadIdx.x) * V;
  if (column >= args.hidden) {
    return;
  }
  const int64_t end = run_end(args.sorted, begin, args.tokens);
  const T* dx = static_cast<const T*>(args.dx) + column;
  acc_t sums[V] = {};
#pragma unroll 4
  for (int64_t n = begin; n < end; ++n) {
    const Pack<T, V> row = load_pack<T, V>(dx + args.order[n] * args.hidden);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[i] += row[i];
    }
  }
  acc_t* grad = static_cast<acc_t*>(args.grad) + token * args.grad_stride + column;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    grad[i] += static_cast<acc_t>(args.scale) * sums[i];
  }
}

} // namespace

const char* launch_embedding_backward(const EmbeddingBackwardArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.hidden) && aligned(args.dx);
  with_packs(args.type, wide, [&](auto tag, auto pack) {
    const int64_t tiles = ceil_div<int64_t>(args.hidden / pack, kThreads);
    const dim3 grid(static_cast<unsigned>(args.tokens * tiles));
    embedding_backward<typename decltype(tag)::type, pack><<<grid, kThreads, 0, stream>>>(args, tiles);
  });
  return launch_problem();
}

} // namespace distill::models
