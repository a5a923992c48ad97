#include <cooperative_groups.h>

#include "trainer/models/ops/delta_rule.cuh"

namespace distill::models {

namespace {

namespace cg = cooperative_groups;

// Sums over all columns of a state are needed in the backward pass: a cluster of blocks has them, which read one
// another's shared memory, or where there are no clusters one block.
constexpr int kCluster = 4;
template <typename acc_t, int kBlocks>
constexpr int kBackwardTile = kBlocks == 1 ? (sizeof(acc_t) == 4 ? 2 : 1) : (sizeof(acc_t) == 4 ? 8 : 4);

// The blocks that have a state, kBlocks of them, each kDim / kBlocks columns.
template <int kBlocks>
struct StateBlocks {
  static constexpr int kColumns = kDim / kBlocks;
  static constexpr int kThreads = kColumns * kRowLanes;
  static constexpr int kWarps = kThreads / kWarp;

  static __device__ __forceinline__ int rank() {
    return kBlocks == 1 ? 0 : static_cast<int>(blockIdx.x % kBlocks);
  }
  static __device__ __forceinline__ void sync() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
      cg::this_cluster().sync();
#endif
    }
  }
  // The same object of another block's shared memory.
  template <typename Object>
  static __device__ __forceinline__ const Object* of(const Object* own, int block) {
    if constexpr (kBlocks == 1) {
      return own;
    } else {
#if __CUDA_ARCH__ >= 900
      return cg::this_cluster().map_shared_rank(own, block);
#else
      return own;
#endif
    }
  }
};

// Sums over all columns of rows that the lanes of all blocks hold, for the tokens of a tile: each warp puts in its
// part, and sum() adds the parts in the order of the columns.
template <typename acc_t, int kTile, int kBlocks>
struct RowSums {
  acc_t parts[kTile][StateBlocks<kBlocks>::kWarps][kDim];

  // `values`: the lane's rows of its column. Lanes kRowLanes apart have the other columns of the warp.
  __device__ __forceinline__ void put(int t, const acc_t* values, int lane) {
    const int group = static_cast<int>(threadIdx.x) % kWarp / kRowLanes;
    acc_t half[kHeldRows / 2];
    const bool upper = (group & 2) != 0;
#pragma unroll
    for (int i = 0; i < kHeldRows / 2; ++i) { // the lower groups keep the first packs, the upper ones the last
      const acc_t kept = upper ? values[i + kHeldRows / 2] : values[i];
      const acc_t sent = upper ? values[i] : values[i + kHeldRows / 2];
      half[i] = kept + __shfl_xor_sync(kAllLanes, sent, 2 * kRowLanes);
    }
    const bool odd = (group & 1) != 0;
    acc_t* place = &parts[t][threadIdx.x / kWarp][row_of(group, lane)];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const acc_t kept = odd ? half[i + kPack] : half[i];
      const acc_t sent = odd ? half[i] : half[i + kPack];
      place[i] = kept + __shfl_xor_sync(kAllLanes, sent, kRowLanes);
    }
  }

  __device__ __forceinline__ acc_t sum(int t, int row) const {
    acc_t total = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const RowSums* theirs = StateBlocks<kBlocks>::of(this, block);
#pragma unroll 8
      for (int warp = 0; warp < StateBlocks<kBlocks>::kWarps; ++warp) {
        total += theirs->parts[t][warp][row];
      }
    }
    return total;
  }
};
static_assert(kPacks == kWarpColumns, "each group of lanes keeps one pack");

// One value for each column and token, summed in the same way.
template <typename acc_t, int kTile, int kBlocks>
struct ColumnSums {
  acc_t parts[kTile][StateBlocks<kBlocks>::kWarps];

  // `value`: of the lane's column, the same on its lanes.
  __device__ __forceinline__ void put(int t, acc_t value) {
    value += __shfl_xor_sync(kAllLanes, value, kRowLanes);
    value += __shfl_xor_sync(kAllLanes, value, 2 * kRowLanes);
    if (threadIdx.x % kWarp == 0) {
      parts[t][threadIdx.x / kWarp] = value;
    }
  }
  __device__ __forceinline__ acc_t sum(int t) const {
    acc_t total = 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const ColumnSums* theirs = StateBlocks<kBlocks>::of(this, block);
      for (int warp = 0; warp < StateBlocks<kBlocks>::kWarps; ++warp) {
        total += theirs->parts[t][warp];
      }
    }
    return total;
  }
};

// What the two kernels of the backward pass have in shared memory.
template <typename acc_t, int kBlocks>
struct BackShared {
  static constexpr int kTile = kBackwardTile<acc_t, kBlocks>;
  static constexpr int kColumns = StateBlocks<kBlocks>::kColumns;
  Tile<acc_t, kTile, kColumns> tile;
  acc_t dout[kTile][kColumns], written[kTile][kColumns];
  RowSums<acc_t, kTile, kBlocks> dk;
};

template <typename acc_t, int kBlocks>
struct AgainShared {
  static constexpr int kTile = kBackwardTile<acc_t, kBlocks>;
  static constexpr int kColumns = StateBlocks<kBlocks>::kColumns;
  Tile<acc_t, kTile, kColumns> tile;
  acc_t dout[kTile][kColumns], carried[kTile][kColumns];
  RowSums<acc_t, kTile, kBlocks> dq, dk;
  ColumnSums<acc_t, kTile, kBlocks> dbeta, terms; // terms: of the decay's gradient
};

// The value head and the segment of a block.
template <int kBlocks>
__device__ __forceinline__ int64_t head_of(const DeltaRuleArgs& args) {
  return blockIdx.x / kBlocks % args.value_heads;
}
template <int kBlocks>
__device__ __forceinline__ Segment own_segment(const DeltaRuleArgs& args) {
  return segment_of(args, blockIdx.x / kBlocks / args.value_heads);
}

// G, from a segment's end to its start, with the names of delta_rule_cpu.cpp: what the key reads of the later tokens'
// part of it, and the part of k's gradient that what is written has.
template <typename T, int kBlocks>
__global__ __launch_bounds__(StateBlocks<kBlocks>::kThreads) void delta_back(
    const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  using Blocks = StateBlocks<kBlocks>;
  constexpr int kTile = kBackwardTile<acc_t, kBlocks>, kColumns = Blocks::kColumns;
  extern __shared__ __align__(32) unsigned char bytes[];
  auto& shared = *reinterpret_cast<BackShared<acc_t, kBlocks>*>(bytes);
  const Segment segment = own_segment<kBlocks>(args);
  const int64_t head = head_of<kBlocks>(args), first_column = static_cast<int64_t>(Blocks::rank()) * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes, column = static_cast<int>(threadIdx.x) / kRowLanes;
  const bool inside = first_column + column < args.value_dim;
  acc_t gradient[kHeldRows] = {};
  Arriving<T, kTile, kColumns> next;
  ArrivingColumns<T, kTile, kColumns> next_dout, next_written;
  const auto fetch = [&](int64_t end) {
    const int64_t begin = max(end - kTile, static_cast<int64_t>(0));
    const int count = static_cast<int>(end - begin);
    next.fetch(args, segment.first + begin, count, head, first_column);
    next_dout.fetch(args, args.dout, segment.first + begin, count, head, first_column);
    next_written.fetch(args, args.written, segment.first + begin, count, head, first_column);
  };
  if (segment.length > 0) {
    fetch(segment.length);
  }
  for (int64_t end = segment.length; end > 0; end -= kTile) {
    const int64_t begin = max(end - kTile, static_cast<int64_t>(0));
    const int count = static_cast<int>(end - begin);
    const int64_t n = segment.first + begin;
    next.place(shared.tile);
    next_dout.place(shared.dout);
    next_written.place(shared.written);
    __syncthreads();
    if (begin > 0) {
      fetch(begin);
    }
    for (int t = count - 1; t >= 0; --t) {
      const HeldRows<acc_t> k(shared.tile.k[t], lane), q(shared.tile.q[t], lane);
      const acc_t dout = shared.dout[t][column], written = shared.written[t][column];
      const acc_t carried = column_dot(k.at, gradient);
      acc_t row_parts[kHeldRows];
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        gradient[i] += q.at[i] * dout;
        row_parts[i] = gradient[i] * written;
      }
      shared.dk.put(t, row_parts, lane);
      const acc_t dwritten = carried + shared.tile.overlap[t] * dout;
      const acc_t dv = shared.tile.beta[t] * dwritten, a = shared.tile.decay[t];
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        gradient[i] = a * (gradient[i] - k.at[i] * dv);
      }
      if (lane == 0 && inside) {
        static_cast<acc_t*>(args.carried)[head_place(args, n + t, head, first_column + column)] = carried;
      }
    }
    Blocks::sync(); // all blocks' parts are there
    for (int i = Blocks::rank() * Blocks::kThreads + static_cast<int>(threadIdx.x); i < count * kDim;
         i += kBlocks * Blocks::kThreads) {
      const int t = i / kDim, row = i % kDim;
      if (row < args.key_dim) {
        static_cast<acc_t*>(args.dk)[((n + t) * args.value_heads + head) * args.key_dim + row] = shared.dk.sum(t, row);
      }
    }
    Blocks::sync(); // the next tile overwrites them, and no block may end while others read its memory
  }
}

// The state, forwards once more: gradients of q, of v, of beta, and the rest of k's; and in ddecay a token's term of
// the decay's gradient.
template <typename T, int kBlocks>
__global__ __launch_bounds__(StateBlocks<kBlocks>::kThreads) void delta_again(
    const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  using Blocks = StateBlocks<kBlocks>;
  constexpr int kTile = kBackwardTile<acc_t, kBlocks>, kColumns = Blocks::kColumns;
  extern __shared__ __align__(32) unsigned char bytes[];
  auto& shared = *reinterpret_cast<AgainShared<acc_t, kBlocks>*>(bytes);
  const Segment segment = own_segment<kBlocks>(args);
  const int64_t head = head_of<kBlocks>(args), first_column = static_cast<int64_t>(Blocks::rank()) * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes, column = static_cast<int>(threadIdx.x) / kRowLanes;
  const bool inside = first_column + column < args.value_dim;
  acc_t state[kHeldRows] = {};
  Arriving<T, kTile, kColumns> next;
  ArrivingColumns<T, kTile, kColumns> next_dout;
  ArrivingColumns<acc_t, kTile, kColumns> next_carried;
  const auto count_from = [&](int64_t begin) {
    return static_cast<int>(min(static_cast<int64_t>(kTile), segment.length - begin));
  };
  const auto fetch = [&](int64_t begin) {
    const int count = count_from(begin);
    next.fetch(args, segment.first + begin, count, head, first_column);
    next_dout.fetch(args, args.dout, segment.first + begin, count, head, first_column);
    next_carried.fetch(args, args.carried, segment.first + begin, count, head, first_column);
  };
  if (segment.length > 0) {
    fetch(0);
  }
  for (int64_t begin = 0; begin < segment.length; begin += kTile) {
    const int count = count_from(begin);
    const int64_t n = segment.first + begin;
    next.place(shared.tile);
    next_dout.place(shared.dout);
    next_carried.place(shared.carried);
    __syncthreads();
    if (begin + kTile < segment.length) {
      fetch(begin + kTile);
    }
    for (int t = 0; t < count; ++t) {
      const HeldRows<acc_t> k(shared.tile.k[t], lane), q(shared.tile.q[t], lane);
      const acc_t a = shared.tile.decay[t], beta = shared.tile.beta[t], v = shared.tile.v[t][column];
      const acc_t dout = shared.dout[t][column], carried = shared.carried[t][column];
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        state[i] *= a;
      }
      const acc_t held = column_dot(k.at, state), read = column_dot(q.at, state);
      const acc_t dwritten = carried + shared.tile.overlap[t] * dout;
      const acc_t missing = v - held, written = beta * missing, dv = beta * dwritten;
      acc_t row_parts[kHeldRows];
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        row_parts[i] = state[i] * dv;
        state[i] += k.at[i] * written;
      }
      shared.dk.put(t, row_parts, lane);
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        row_parts[i] = state[i] * dout;
      }
      shared.dq.put(t, row_parts, lane);
      shared.dbeta.put(t, dwritten * missing);
      shared.terms.put(t, dout * read - dv * held - carried * written);
      if (lane == 0 && inside) {
        static_cast<T*>(args.dqkv)[value_place(args, n + t, head, first_column + column)] = from_acc<T>(dv);
      }
    }
    Blocks::sync(); // all blocks' parts are there
    // A warp for each token.
    for (int t = Blocks::rank() * Blocks::kWarps + static_cast<int>(threadIdx.x) / kWarp; t < count;
         t += kBlocks * Blocks::kWarps) {
      for (int row = static_cast<int>(threadIdx.x) % kWarp; row < kDim; row += kWarp) {
        const acc_t dq = shared.dq.sum(t, row), dk = shared.dk.sum(t, row);
        if (row < args.key_dim) {
          const int64_t place = ((n + t) * args.value_heads + head) * args.key_dim + row;
          static_cast<acc_t*>(args.dq)[place] = dq;
          static_cast<acc_t*>(args.dk)[place] -= dk;
        }
      }
      if (threadIdx.x % kWarp == 0) {
        const int64_t gate = (n + t) * args.value_heads + head;
        static_cast<acc_t*>(args.ddecay)[gate] = shared.terms.sum(t);
        static_cast<acc_t*>(args.dbeta)[gate] = shared.dbeta.sum(t);
      }
    }
    Blocks::sync(); // the next tile overwrites them, and no block may end while others read its memory
  }
}

// Sums the terms of the decay's gradient over the later tokens of the segment: a warp for each segment and value head,
// 32 tokens at a time from the segment's end.
template <typename T>
__global__ __launch_bounds__(256) void delta_decay_sums(const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (256 / kWarp) + threadIdx.x / kWarp;
  if (task >= args.segments * args.value_heads) {
    return;
  }
  const Segment segment = segment_of(args, task / args.value_heads);
  const int64_t head = task % args.value_heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  acc_t* sums = static_cast<acc_t*>(args.ddecay);
  acc_t later = 0;
  for (int64_t done = 0; done < segment.length; done += kWarp) {
    const int64_t t = segment.length - 1 - done - lane;
    acc_t* place = sums + (segment.first + t) * args.value_heads + head;
    acc_t sum = t >= 0 ? *place : acc_t(0);
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const acc_t before = __shfl_up_sync(kAllLanes, sum, offset);
      sum += lane >= offset ? before : acc_t(0);
    }
    sum += later;
    if (t >= 0) {
      *place = sum;
    }
    later = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

// Gradients of q and k before they were normalised, summed over the value heads that share them: a warp for each token
// and key head.
template <typename T>
__global__ __launch_bounds__(256) void delta_key_gradients(const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  constexpr int kHeld = kDim / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (256 / kWarp) + threadIdx.x / kWarp;
  if (row >= args.tokens * args.key_heads) {
    return;
  }
  const int64_t n = row / args.key_heads, key_head = row % args.key_heads;
  const int64_t shared_by = args.value_heads / args.key_heads;
  const acc_t* norms = static_cast<const acc_t*>(args.norms) + row * 3;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const acc_t* from = static_cast<const acc_t*>(which == 0 ? args.dq : args.dk);
    const acc_t factor = norms[which];
    const acc_t root = which == 0 ? sqrt(static_cast<acc_t>(args.key_dim)) : acc_t(1);
    acc_t gradient[kHeld], direction[kHeld], along = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t d = i * kWarp + threadIdx.x % kWarp;
      gradient[i] = direction[i] = 0;
      if (d < args.key_dim) {
        for (int64_t head = key_head * shared_by; head < (key_head + 1) * shared_by; ++head) {
          gradient[i] += from[(n * args.value_heads + head) * args.key_dim + d];
        }
        direction[i] = key_element<T>(args, n, key_head, which, d) * factor * root;
        along += gradient[i] * direction[i];
      }
    }
    along = lane_sum(along, kWarp);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t d = i * kWarp + threadIdx.x % kWarp;
      if (d < args.key_dim) {
        static_cast<T*>(args.dqkv)[key_place(args, n, key_head, which, d)] =
            from_acc<T>(factor * (gradient[i] - direction[i] * along));
      }
    }
  }
}

// Launches clusters of kBlocks blocks for each segment and value head.
template <int kBlocks, typename Kernel>
void launch_states(Kernel* kernel, size_t bytes, const DeltaRuleArgs& args, CUstream_st* stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kBlocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(args.segments * args.value_heads * kBlocks));
  config.blockDim = dim3(StateBlocks<kBlocks>::kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = kBlocks > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, args);
}

template <typename T, int kBlocks>
void launch_backward(const DeltaRuleArgs& args, CUstream_st* stream) {
  using acc_t = acc_type<T>;
  launch_states<kBlocks>(delta_back<T, kBlocks>, sizeof(BackShared<acc_t, kBlocks>), args, stream);
  launch_states<kBlocks>(delta_again<T, kBlocks>, sizeof(AgainShared<acc_t, kBlocks>), args, stream);
}

bool has_clusters() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major >= 9;
}

} // namespace

const char* launch_delta_rule_backward(const DeltaRuleArgs& args, CUstream_st* stream) {
  const bool clusters = has_clusters();
  launch_delta_norms(args, stream);
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    clusters ? launch_backward<T, kCluster>(args, stream) : launch_backward<T, 1>(args, stream);
    delta_decay_sums<T><<<warps_for(args.segments * args.value_heads), 256, 0, stream>>>(args);
    delta_key_gradients<T><<<warps_for(args.tokens * args.key_heads), 256, 0, stream>>>(args);
  });
  return launch_problem();
}

} // namespace distill::models
