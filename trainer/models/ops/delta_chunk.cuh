#pragma once

#include "trainer/models/ops/delta_chunk_kernel.h"
#include "trainer/models/ops/delta_rule.cuh"
#include "trainer/models/ops/tensor_core.cuh"

// What the kernels of the chunked gated delta rule share.
namespace distill::models {

constexpr int kChunk = static_cast<int>(kDeltaChunk);
constexpr int kStateColumns = 32; // of a state, that a block of the sequential kernels has

using TokenTile = BfTile<kChunk, kDim>; // rows of q, of k, of v
using ColumnTile = BfTile<kChunk, kStateColumns>;
using SquareTile = BfTile<kChunk, kChunk>;

// Rows of the tensors from token n on.
__device__ __forceinline__ Rows key_rows(const DeltaChunkArgs& args, int64_t n, int64_t key_head, int which) {
  return {static_cast<const bf16*>(args.qkv) + key_place(args, n, key_head, which, 0), channels_of(args)};
}
__device__ __forceinline__ Rows value_rows(const DeltaChunkArgs& args, int64_t n, int64_t head) {
  return {static_cast<const bf16*>(args.qkv) + value_place(args, n, head, 0), channels_of(args)};
}
// Of a tensor [N, A, width].
__device__ __forceinline__ MutableRows
head_rows(const DeltaChunkArgs& args, void* tensor, int64_t n, int64_t head, int64_t width, int64_t column = 0) {
  return {static_cast<bf16*>(tensor) + (n * args.value_heads + head) * width + column, args.value_heads * width};
}
__device__ __forceinline__ Rows const_head_rows(
    const DeltaChunkArgs& args, const void* tensor, int64_t n, int64_t head, int64_t width, int64_t column = 0) {
  return {static_cast<const bf16*>(tensor) + (n * args.value_heads + head) * width + column, args.value_heads * width};
}
// The state, or its gradient, of the chunk that begins at token n: Dk rows.
__device__ __forceinline__ MutableRows
state_rows(const DeltaChunkArgs& args, void* states, int64_t n, int64_t head, int64_t column = 0) {
  return {
      static_cast<bf16*>(states) + (n / kChunk * args.value_heads + head) * args.key_dim * args.value_dim + column,
      args.value_dim};
}

__device__ __forceinline__ const float* gates_of(const DeltaChunkArgs& args, int gate, int64_t head, int64_t n) {
  return args.gates + (gate * args.value_heads + head) * args.tokens + n;
}

// What a block of the sequential kernels has: kStateColumns columns of the states of a value head, over one segment.
struct StateTask {
  Segment segment;
  int64_t head, key_head, column;
  int width, chunks;

  __device__ __forceinline__ explicit StateTask(const DeltaChunkArgs& args) {
    const int64_t tiles = ceil_div<int64_t>(args.value_dim, kStateColumns), task = blockIdx.x / tiles;
    head = task % args.value_heads;
    key_head = head / (args.value_heads / args.key_heads);
    segment = segment_of(args, task / args.value_heads);
    column = blockIdx.x % tiles * kStateColumns;
    width = static_cast<int>(min(args.value_dim - column, static_cast<int64_t>(kStateColumns)));
    chunks = static_cast<int>(ceil_div(segment.length, kDeltaChunk));
  }
  __device__ __forceinline__ int64_t token(int chunk) const {
    return segment.first + chunk * kDeltaChunk;
  }
  __device__ __forceinline__ int count(int chunk) const {
    return static_cast<int>(min(segment.length - chunk * kDeltaChunk, kDeltaChunk));
  }
};

// Begins to copy one gate of a chunk's tokens, zero beyond its count.
__device__ __forceinline__ void load_gate(
    float (&to)[kChunk], const DeltaChunkArgs& args, DeltaChunkGate gate, int64_t head, int64_t n, int count) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < kChunk) {
    copy_word_async(&to[t], gates_of(args, gate, head, n) + (t < count ? t : 0), t < count);
  }
}

// exp of a difference of sums of decays; those that are not of later by earlier tokens are not used, and are at most 1.
__device__ __forceinline__ float decay_between(float later, float earlier) {
  return __expf(fminf(later - earlier, 0.0f));
}

// All gates of a chunk's tokens, zero beyond its count.
struct ChunkGates {
  float at[kGates][kChunk];

  template <int kThreads>
  __device__ __forceinline__ void load(const DeltaChunkArgs& args, const DeltaChunk& chunk, int64_t head) {
    for (int i = static_cast<int>(threadIdx.x); i < kGates * kChunk; i += kThreads) {
      const int gate = i / kChunk, t = i % kChunk;
      at[gate][t] = t < chunk.count ? gates_of(args, gate, head, chunk.first)[t] : 0.0f;
    }
  }
};

template <typename Shared>
__device__ __forceinline__ Shared& launched_shared() {
  extern __shared__ __align__(128) unsigned char delta_chunk_bytes[];
  return *reinterpret_cast<Shared*>(delta_chunk_bytes);
}

template <typename Shared, typename Kernel>
void launch_with_shared(Kernel* kernel, int64_t blocks, int threads, const DeltaChunkArgs& args, CUstream_st* stream) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(sizeof(Shared)));
  kernel<<<static_cast<unsigned>(blocks), threads, sizeof(Shared), stream>>>(args);
}

inline int64_t state_blocks(const DeltaChunkArgs& args) {
  return args.segments * args.value_heads * ceil_div<int64_t>(args.value_dim, kStateColumns);
}

// The parts of the two passes, each in its file.
void launch_chunk_gates(const DeltaChunkArgs& args, CUstream_st* stream); // chunks, norms, gates
void launch_chunk_inverse_forward(const DeltaChunkArgs& args, CUstream_st* stream); // reads, scores, T beta v
void launch_chunk_inverse_backward(const DeltaChunkArgs& args, CUstream_st* stream); // reads, T^T scores^T dout
void launch_chunk_states(const DeltaChunkArgs& args, CUstream_st* stream); // states
void launch_chunk_dstates(const DeltaChunkArgs& args, CUstream_st* stream); // dstates, y and gradients of v
void launch_chunk_gradients(const DeltaChunkArgs& args, CUstream_st* stream); // of q, k and the gates

} // namespace distill::models
