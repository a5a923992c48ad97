#pragma once

#include "trainer/models/ops/delta_rule_kernel.h"
#include "trainer/models/ops/device.cuh"

// What the kernels of the gated delta rule share: how a state lies in registers, and the tiles of tokens in shared
// memory that a block walks through.
namespace distill::models {

// A column of a state is spread over kRowLanes lanes of a warp, each of which has kHeldRows of its rows in registers,
// in packs of kPack neighbouring rows. A warp has kWarpColumns columns, and a block kWarpColumns for each of its warps.
constexpr int kRowLanes = 8;
constexpr int kPack = 4;
constexpr int kPacks = static_cast<int>(kMaxDeltaDim) / (kRowLanes * kPack);
constexpr int kHeldRows = kPacks * kPack;
constexpr int kWarpColumns = kWarp / kRowLanes;
constexpr int kDim = static_cast<int>(kMaxDeltaDim);

struct Segment {
  int64_t first, length;
};

__device__ __forceinline__ Segment segment_of(const DeltaRuleArgs& args, int64_t index) {
  const int64_t first = args.cu_seqlens[index];
  return {first, args.cu_seqlens[index + 1] - first};
}

__device__ __forceinline__ int row_of(int pack, int lane) { // the first row of a lane's pack
  return (pack * kRowLanes + lane) * kPack;
}

__device__ __forceinline__ int64_t channels_of(const DeltaRuleArgs& args) {
  return 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
}

// The place of an element of q (0) or k (1) of a token's key head, and of v of a value head.
__device__ __forceinline__ int64_t
key_place(const DeltaRuleArgs& args, int64_t n, int64_t key_head, int which, int64_t d) {
  return n * channels_of(args) + (which * args.key_heads + key_head) * args.key_dim + d;
}
__device__ __forceinline__ int64_t value_place(const DeltaRuleArgs& args, int64_t n, int64_t head, int64_t d) {
  return n * channels_of(args) + 2 * args.key_heads * args.key_dim + head * args.value_dim + d;
}
// Of a tensor [N, A, Dv].
__device__ __forceinline__ int64_t head_place(const DeltaRuleArgs& args, int64_t n, int64_t head, int64_t d) {
  return (n * args.value_heads + head) * args.value_dim + d;
}

template <typename T>
__device__ __forceinline__ acc_type<T> key_element(
    const DeltaRuleArgs& args, int64_t n, int64_t key_head, int which, int64_t d) {
  return to_acc(static_cast<const T*>(args.qkv)[key_place(args, n, key_head, which, d)]);
}

// The tokens of a tile in shared memory: q and k normalised; rows beyond Dk, columns beyond Dv and tokens beyond the
// tile's count are zero.
template <typename acc_t, int kTile, int kColumns>
struct Tile {
  acc_t q[kTile][kDim];
  acc_t k[kTile][kDim];
  acc_t v[kTile][kColumns];
  acc_t decay[kTile]; // exp of it
  acc_t beta[kTile];
  acc_t overlap[kTile]; // q . k
};

// A thread's part of the next tile, on its way from device memory while the tile before it is computed.
template <typename T, int kTile, int kColumns>
struct Arriving {
  using acc_t = acc_type<T>;
  static constexpr int kThreads = kColumns * kRowLanes;
  static constexpr int kKeys = (kTile * kDim + kThreads - 1) / kThreads;
  static constexpr int kValues = (kTile * kColumns + kThreads - 1) / kThreads;
  T q[kKeys], k[kKeys];
  acc_t q_norm[kKeys], k_norm[kKeys];
  T v[kValues];
  acc_t decay, beta, overlap;

  __device__ __forceinline__ void fetch(
      const DeltaRuleArgs& args, int64_t n, int count, int64_t head, int64_t first_column) {
    const int64_t key_head = head / (args.value_heads / args.key_heads);
    const T* qkv = static_cast<const T*>(args.qkv);
    const acc_t* norms = static_cast<const acc_t*>(args.norms);
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x), t = i / kDim, d = i % kDim;
      q[j] = k[j] = T(0.0f);
      q_norm[j] = k_norm[j] = 0;
      if (t < count && d < args.key_dim) {
        q[j] = qkv[key_place(args, n + t, key_head, 0, d)];
        k[j] = qkv[key_place(args, n + t, key_head, 1, d)];
        q_norm[j] = norms[((n + t) * args.key_heads + key_head) * 3];
        k_norm[j] = norms[((n + t) * args.key_heads + key_head) * 3 + 1];
      }
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x), t = i / kColumns;
      const int64_t d = first_column + i % kColumns;
      v[j] = i < kTile * kColumns && t < count && d < args.value_dim ? qkv[value_place(args, n + t, head, d)] : T(0.0f);
    }
    decay = beta = overlap = 0;
    if (static_cast<int>(threadIdx.x) < count) {
      const int64_t token = n + threadIdx.x, gate = token * args.value_heads + head;
      decay = static_cast<const acc_t*>(args.decay)[gate];
      beta = static_cast<const acc_t*>(args.beta)[gate];
      overlap = norms[(token * args.key_heads + key_head) * 3 + 2];
    }
  }

  __device__ __forceinline__ void place(Tile<acc_t, kTile, kColumns>& tile) const {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x), t = i / kDim, d = i % kDim;
      if (t < kTile) {
        tile.q[t][d] = to_acc(q[j]) * q_norm[j];
        tile.k[t][d] = to_acc(k[j]) * k_norm[j];
      }
    }
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x);
      if (i < kTile * kColumns) {
        tile.v[i / kColumns][i % kColumns] = to_acc(v[j]);
      }
    }
    if (threadIdx.x < kTile) {
      tile.decay[threadIdx.x] = exp(decay);
      tile.beta[threadIdx.x] = beta;
      tile.overlap[threadIdx.x] = overlap;
    }
  }
};

// A tile's elements of a tensor [N, A, Dv], in the same way.
template <typename T, int kTile, int kColumns>
struct ArrivingColumns {
  static constexpr int kThreads = kColumns * kRowLanes;
  static constexpr int kValues = (kTile * kColumns + kThreads - 1) / kThreads;
  T values[kValues];

  __device__ __forceinline__ void fetch(
      const DeltaRuleArgs& args, const void* from, int64_t n, int count, int64_t head, int64_t first_column) {
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x), t = i / kColumns;
      const int64_t d = first_column + i % kColumns;
      values[j] = i < kTile * kColumns && t < count && d < args.value_dim
          ? static_cast<const T*>(from)[head_place(args, n + t, head, d)]
          : T(0.0f);
    }
  }
  __device__ __forceinline__ void place(acc_type<T> (&tile)[kTile][kColumns]) const {
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      const int i = j * kThreads + static_cast<int>(threadIdx.x);
      if (i < kTile * kColumns) {
        tile[i / kColumns][i % kColumns] = to_acc(values[j]);
      }
    }
  }
};

// A lane's rows of a token's q or k.
template <typename acc_t>
struct HeldRows {
  acc_t at[kHeldRows];

  __device__ __forceinline__ HeldRows(const acc_t* rows, int lane) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Pack<acc_t, kPack> pack = load_pack<acc_t, kPack>(rows + row_of(p, lane));
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        at[p * kPack + j] = pack.element[j];
      }
    }
  }
};

// The sum over a column's rows of x * y, on all of its lanes.
template <typename acc_t>
__device__ __forceinline__ acc_t column_dot(const acc_t* x, const acc_t* y) {
  acc_t low = 0, high = 0;
#pragma unroll
  for (int i = 0; i < kHeldRows; i += 2) {
    low += x[i] * y[i];
    high += x[i + 1] * y[i + 1];
  }
  return lane_sum(low + high, kRowLanes);
}

inline dim3 warps_for(int64_t rows) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(rows, 256 / kWarp)));
}

// Fills DeltaRuleArgs::norms.
void launch_delta_norms(const DeltaRuleArgs& args, CUstream_st* stream);

} // namespace distill::models
