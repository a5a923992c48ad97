#include "trainer/models/ops/combine_kernel.h"

#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 128;

// A block sums kThreads packs of one token's columns.
template <typename T, int V>
__global__ __launch_bounds__(kThreads) void combine(const __grid_constant__ CombineArgs args, int64_t tiles) {
  using acc_t = acc_type<T>;
  const int64_t token = blockIdx.x / tiles;
  const int64_t column = (blockIdx.x % tiles * kThreads + threadIdx.x) * V;
  if (column >= args.hidden) {
    return;
  }
  const T* rows = static_cast<const T*>(args.rows) + column;
  const int32_t* places = args.places + token * args.per_token;
  acc_t sums[V] = {};
#pragma unroll 8
  for (int64_t k = 0; k < args.per_token; ++k) {
    const Pack<T, V> row = load_pack<T, V>(rows + places[k] * args.hidden);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[i] += row[i];
    }
  }
  if (args.residual != nullptr) {
    const Pack<T, V> row = load_pack<T, V>(static_cast<const T*>(args.residual) + token * args.hidden + column);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      sums[i] += row[i];
    }
  }
  Pack<T, V> out;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    out.set(i, sums[i]);
  }
  store_pack(static_cast<T*>(args.out) + token * args.hidden + column, out);
}

} // namespace

const char* launch_combine(const CombineArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.hidden) && aligned(args.rows, args.residual, args.out);
  with_packs(args.type, wide, [&](auto tag, auto pack) {
    const int64_t tiles = ceil_div<int64_t>(args.hidden / pack, kThreads);
    const dim3 grid(static_cast<unsigned>(args.tokens * tiles));
    combine<typename decltype(tag)::type, pack><<<grid, kThreads, 0, stream>>>(args, tiles);
  });
  return launch_problem();
}

} // namespace distill::models
