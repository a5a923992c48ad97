#include "trainer/models/ops/delta_chunk.cuh"

// The sequential parts of the backward pass: the states once more, from what was written into them, and from the
// segment's end to its start their gradients.
namespace distill::models {

namespace {

constexpr int kThreads = 256;

// Eight elements times a factor.
__device__ __forceinline__ void scale_piece(bf16* to, const bf16* from, float factor) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 pair = load_pair(from + i);
    store_pair(to + i, pair.x * factor, pair.y * factor);
  }
}

constexpr int kStateStages = 4;

struct StateStage {
  TokenTile k;
  ColumnTile written;
  float sums[kChunk], write[kChunk]; // gates
};

struct StateShared {
  StateStage stages[kStateStages];
  ColumnTile moved; // w times exp(g_end - g) / length of k
  BfTile<kDim, kStateColumns> state;
};

// States of all chunks but a segment's first one.
__global__ __launch_bounds__(kThreads) void delta_chunk_states(const __grid_constant__ DeltaChunkArgs args) {
  auto& shared = launched_shared<StateShared>();
  const StateTask task(args);
  const int key_dim = static_cast<int>(args.key_dim), steps = task.chunks - 1;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int c) {
    if (c < steps) {
      StateStage& stage = shared.stages[c % kStateStages];
      const int64_t n = task.token(c);
      load_tile<kThreads>(stage.k, key_rows(args, n, task.key_head, 1), kChunk, key_dim);
      load_tile<kThreads>(
          stage.written, const_head_rows(args, args.written, n, task.head, args.value_dim, task.column), kChunk,
          task.width);
      load_gate(stage.sums, args, kGateSum, task.head, n, kChunk);
      load_gate(stage.write, args, kGateWrite, task.head, n, kChunk);
    }
    commit_copies(); // a group for each chunk, also where it is empty
  };
  for (int c = 0; c < kStateStages - 1; ++c) {
    fetch(c);
  }
  WarpSums<kStateColumns / 8> state;
  state.clear();
  for (int c = 0; c < steps; ++c) {
    wait_for_copies<kStateStages - 2>();
    __syncthreads(); // the chunk is there; the chunk before is done with
    fetch(c + kStateStages - 1);
    StateStage& stage = shared.stages[c % kStateStages];
    constexpr int kPieces = kStateColumns / 8;
    static_assert(kThreads == kChunk * kPieces);
    scale_piece(
        &shared.moved.at[thread / kPieces][thread % kPieces * 8],
        &stage.written.at[thread / kPieces][thread % kPieces * 8], stage.write[thread / kPieces]);
    __syncthreads();
    const float decay = expf(fminf(stage.sums[kChunk - 1], 0.0f));
    state.scale_rows([&](int) { return decay; });
    multiply<Stored::kTransposed, Stored::kAsRead>(state, stage.k, warp * 16, shared.moved, 0, 0, kChunk);
    store_sums(state, shared.state, warp * 16, 0);
    store_warp_rows(
        shared.state, state_rows(args, args.states, task.token(c + 1), task.head, task.column), warp * 16, key_dim,
        task.width);
  }
}

constexpr int kGradientStages = 3;

struct GradientStage {
  TokenTile reads, k, q; // reads: T^T exp(g_end - g) K
  ColumnTile direct, dout; // direct: T^T scores^T dout
  float sums[kChunk], beta[kChunk], read[kChunk], query[kChunk]; // gates
};

struct GradientShared {
  GradientStage stages[kGradientStages];
  BfTile<kDim, kStateColumns> gradient; // of the state after the chunk, rounded
  ColumnTile y, dv;
  ColumnTile taken; // -y times beta exp(g) / length of k
  ColumnTile moved; // dout times exp(g) Dk^-0.5 / length of q
};

// Gradients of the same states; y, and the gradients of v.
__global__ __launch_bounds__(kThreads, 1) void delta_chunk_dstates(const __grid_constant__ DeltaChunkArgs args) {
  auto& shared = launched_shared<GradientShared>();
  const StateTask task(args);
  const int key_dim = static_cast<int>(args.key_dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, thread = static_cast<int>(threadIdx.x);
  const int first = warp * 16; // of the warp's tokens, and of its rows of the state
  const auto fetch = [&](int step) {
    if (step < task.chunks) {
      GradientStage& stage = shared.stages[step % kGradientStages];
      const int c = task.chunks - 1 - step, count = task.count(c);
      const int64_t n = task.token(c), value_dim = args.value_dim;
      load_tile<kThreads>(stage.reads, const_head_rows(args, args.reads, n, task.head, key_dim), count, key_dim);
      load_tile<kThreads>(stage.k, key_rows(args, n, task.key_head, 1), count, key_dim);
      load_tile<kThreads>(stage.q, key_rows(args, n, task.key_head, 0), count, key_dim);
      load_tile<kThreads>(
          stage.direct, const_head_rows(args, args.dwritten, n, task.head, value_dim, task.column), count, task.width);
      load_tile<kThreads>(
          stage.dout, const_head_rows(args, args.dout, n, task.head, value_dim, task.column), count, task.width);
      load_gate(stage.sums, args, kGateSum, task.head, n, count);
      load_gate(stage.beta, args, kGateBeta, task.head, n, count);
      load_gate(stage.read, args, kGateRead, task.head, n, count);
      load_gate(stage.query, args, kGateQuery, task.head, n, count);
    }
    commit_copies(); // a group for each chunk, also where it is empty
  };
  for (int step = 0; step < kGradientStages - 1; ++step) {
    fetch(step);
  }
  WarpSums<kStateColumns / 8> gradient;
  gradient.clear();
  store_sums(gradient, shared.gradient, first, 0);
  for (int step = 0; step < task.chunks; ++step) {
    wait_for_copies<kGradientStages - 2>();
    __syncthreads(); // the chunk and the rounded gradient are there; the chunk before is done with
    fetch(step + kGradientStages - 1);
    GradientStage& stage = shared.stages[step % kGradientStages];
    const int c = task.chunks - 1 - step, count = task.count(c);
    const int64_t n = task.token(c);
    if (first < kChunk) {
      WarpSums<kStateColumns / 8> sums;
      sums.clear();
      multiply<Stored::kAsRead, Stored::kAsRead>(sums, stage.reads, first, shared.gradient, 0, 0, kDim);
      sums.for_each_pair([&](int r, int j, float x, float y) {
        const int t = first + r;
        const float2 direct = load_pair(&stage.direct.at[t][j]);
        const float low = direct.x + x, high = direct.y + y, beta = stage.beta[t], read = -stage.read[t];
        store_pair(&shared.y.at[t][j], low, high);
        store_pair(&shared.dv.at[t][j], low * beta, high * beta);
        store_pair(&shared.taken.at[t][j], low * read, high * read);
      });
      store_warp_rows(
          shared.y, head_rows(args, args.dwritten, n, task.head, args.value_dim, task.column), first, count,
          task.width);
      const MutableRows dv{
          static_cast<bf16*>(args.dqkv) + value_place(args, n, task.head, task.column), channels_of(args)};
      store_warp_rows(shared.dv, dv, first, count, task.width);
    } else {
      constexpr int kPieces = kStateColumns / 8, kScalers = kThreads / 2;
      for (int i = thread - kScalers; i < kChunk * kPieces; i += kScalers) {
        const int t = i / kPieces, j = i % kPieces * 8;
        scale_piece(&shared.moved.at[t][j], &stage.dout.at[t][j], stage.query[t]);
      }
    }
    __syncthreads(); // y is there, and the rounded gradient is read
    if (c > 0) {
      const float decay = expf(fminf(stage.sums[count - 1], 0.0f));
      gradient.scale_rows([&](int) { return decay; });
      multiply<Stored::kTransposed, Stored::kAsRead>(gradient, stage.q, first, shared.moved, 0, 0, kChunk);
      multiply<Stored::kTransposed, Stored::kAsRead>(gradient, stage.k, first, shared.taken, 0, 0, kChunk);
      store_sums(gradient, shared.gradient, first, 0);
      store_warp_rows(
          shared.gradient, state_rows(args, args.dstates, n, task.head, task.column), first, key_dim, task.width);
    }
  }
}

} // namespace

void launch_chunk_states(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_with_shared<StateShared>(delta_chunk_states, state_blocks(args), kThreads, args, stream);
}

void launch_chunk_dstates(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_with_shared<GradientShared>(delta_chunk_dstates, state_blocks(args), kThreads, args, stream);
}

const char* launch_delta_chunk_backward(const DeltaChunkArgs& args, CUstream_st* stream) {
  if (!aligned(args.qkv, args.written, args.dout, args.dqkv)) {
    return "elements must begin at multiples of 16 bytes";
  }
  launch_chunk_gates(args, stream);
  launch_chunk_inverse_backward(args, stream);
  launch_chunk_states(args, stream);
  launch_chunk_dstates(args, stream);
  launch_chunk_gradients(args, stream);
  return launch_problem();
}

} // namespace distill::models
