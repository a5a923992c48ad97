#include "trainer/models/ops/delta_chunk.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kStages = 3; // chunks whose elements are in shared memory, or on their way there

struct ForwardStage {
  TokenTile reads, k, q;
  SquareTile scores;
  ColumnTile values; // T beta v
  float sums[kChunk], write[kChunk], query[kChunk]; // gates
};

struct ForwardShared {
  ForwardStage stages[kStages];
  BfTile<kDim, kStateColumns> state; // rounded
  ColumnTile written, moved; // moved: w times exp(g_end - g) / length of k
  ColumnTile out;
};

// A block walks through a segment with kStateColumns columns of one value head's state, which its warps have in
// registers, 16 rows each. The first four warps compute w of a chunk, 16 tokens each, the others what its queries read.
__global__ __launch_bounds__(kThreads, 1) void delta_chunk_forward(const __grid_constant__ DeltaChunkArgs args) {
  auto& shared = launched_shared<ForwardShared>();
  const StateTask task(args);
  const int key_dim = static_cast<int>(args.key_dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool writes = warp < kChunk / 16;
  const int first = warp % (kChunk / 16) * 16; // of the warp's tokens
  const auto fetch = [&](int c) {
    if (c < task.chunks) {
      ForwardStage& stage = shared.stages[c % kStages];
      const int64_t n = task.token(c);
      const int count = task.count(c);
      load_tile<kThreads>(stage.reads, const_head_rows(args, args.reads, n, task.head, key_dim), count, key_dim);
      load_tile<kThreads>(stage.k, key_rows(args, n, task.key_head, 1), count, key_dim);
      load_tile<kThreads>(stage.q, key_rows(args, n, task.key_head, 0), count, key_dim);
      load_tile<kThreads>(stage.scores, const_head_rows(args, args.scores, n, task.head, kChunk), count, kChunk);
      load_tile<kThreads>(
          stage.values, const_head_rows(args, args.written, n, task.head, args.value_dim, task.column), count,
          task.width);
      load_gate(stage.sums, args, kGateSum, task.head, n, count);
      load_gate(stage.write, args, kGateWrite, task.head, n, count);
      load_gate(stage.query, args, kGateQuery, task.head, n, count);
    }
    commit_copies(); // a group for each chunk, also where it is empty
  };
  for (int c = 0; c < kStages - 1; ++c) {
    fetch(c);
  }
  WarpSums<kStateColumns / 8> state, sums;
  state.clear();
  store_sums(state, shared.state, warp * 16, 0);
  for (int c = 0; c < task.chunks; ++c) {
    wait_for_copies<kStages - 2>();
    __syncthreads(); // the chunk and the rounded state are there; the chunk before is done with
    fetch(c + kStages - 1);
    ForwardStage& stage = shared.stages[c % kStages];
    const int64_t n = task.token(c);
    const int count = task.count(c);
    sums.clear();
    if (writes) {
      multiply<Stored::kAsRead, Stored::kAsRead>(sums, stage.reads, first, shared.state, 0, 0, kDim);
      sums.for_each_pair([&](int r, int j, float x, float y) {
        const int t = first + r;
        const float2 value = load_pair(&stage.values.at[t][j]);
        const float low = value.x - x, high = value.y - y, write = stage.write[t];
        store_pair(&shared.written.at[t][j], low, high);
        store_pair(&shared.moved.at[t][j], low * write, high * write);
      });
    } else {
      multiply<Stored::kAsRead, Stored::kAsRead>(sums, stage.q, first, shared.state, 0, 0, kDim);
      sums.scale_rows([&](int r) { return stage.query[first + r]; });
    }
    __syncthreads(); // w is there, and the rounded state is read
    if (writes) {
      store_warp_rows(
          shared.written, head_rows(args, args.written, n, task.head, args.value_dim, task.column), first, count,
          task.width);
    } else {
      multiply<Stored::kAsRead, Stored::kAsRead>(sums, stage.scores, first, shared.written, 0, 0, first + 16);
      store_sums(sums, shared.out, first, 0);
      store_warp_rows(
          shared.out, head_rows(args, args.out, n, task.head, args.value_dim, task.column), first, count, task.width);
    }
    const float decay = expf(fminf(stage.sums[count - 1], 0.0f));
    state.scale_rows([&](int) { return decay; });
    multiply<Stored::kTransposed, Stored::kAsRead>(state, stage.k, warp * 16, shared.moved, 0, 0, kChunk);
    store_sums(state, shared.state, warp * 16, 0);
  }
}

} // namespace

const char* launch_delta_chunk_forward(const DeltaChunkArgs& args, CUstream_st* stream) {
  if (!aligned(args.qkv, args.written, args.out)) {
    return "elements must begin at multiples of 16 bytes";
  }
  launch_chunk_gates(args, stream);
  launch_chunk_inverse_forward(args, stream);
  launch_with_shared<ForwardShared>(delta_chunk_forward, state_blocks(args), kThreads, args, stream);
  return launch_problem();
}

} // namespace distill::models
