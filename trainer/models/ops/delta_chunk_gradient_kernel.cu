#include "trainer/models/ops/delta_chunk.cuh"

// The parallel part of the backward pass: gradients of q, of k and of the gates. With S and D' of a chunk, y and w of
// its tokens, and for i >= j
//
//   X_ij = (dout_i . w_j) E_ij,  Y_ij = -(y_i . w_j) E_ij (i > j)
//
// and q and k normalised, q scaled:
//
//   dq = exp(g) dout S^T + X K
//   dk = X^T Q + exp(g_end - g) w D'^T - beta exp(g) y S^T + (beta Y + (beta Y)^T) K
//   dbeta_i = y_i . v_i - exp(g_i) k_i . S y_i + sum over j of Y_ij k_i . k_j
//
// The gradient of g_i is the sum of all terms with the factor exp(g_i), less those with exp(-g_i), and a decay's is the
// sum of those of the later tokens of its chunk.
namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kRowWarps = kChunk / 16; // warps that have different tokens; the other half has other columns

enum RowSum {
  kQueryReads, // q . S dout, the lengths of q and k left out in these three
  kKeyReads, // k . S y
  kKeyWrites, // k . D' w
  kScoreRows, // sums over j of X_ij q_i . k_j, i > j
  kKeyRows, // sums over j of Y_ij k_i . k_j
  kRowSums
};

struct GradientShared {
  TokenTile q, k;
  TokenTile dout, written, y, v;
  BfTile<kDim, kDim> state, dstate; // S, D'
  SquareTile query_pairs; // X times 1 / length of k_j
  SquareTile key_pairs; // X times Dk^-0.5 / length of q_i
  SquareTile own_pairs; // beta Y + (beta Y)^T times 1 / length of k_j
  ChunkGates gates;
  float rows[kRowSums][2][kChunk]; // by halves of the columns
  float columns[kRowWarps][kChunk]; // sums over the tokens i > j of a warp of (X_ij q_i + beta_i Y_ij k_i) . k_j
  float value_rows[kChunk]; // y . v
  float state_parts[kThreads / kWarp]; // <D', S>
};

using SquareSums = WarpSums<kChunk / 16>; // 16 tokens, half of the chunk's
using WideSums = WarpSums<kDim / 16>; // 16 tokens, half of the key's elements

// The place of a warp in the two kinds of sums.
struct WarpPlace {
  int first, half; // token, half of the columns

  __device__ __forceinline__ WarpPlace()
      : first(static_cast<int>(threadIdx.x) / kWarp % kRowWarps * 16),
        half(static_cast<int>(threadIdx.x) / kWarp / kRowWarps) {}
  __device__ __forceinline__ int square_column() const {
    return half * (kChunk / 2);
  }
  __device__ __forceinline__ int wide_column() const {
    return half * (kDim / 2);
  }
  // Puts down sums over columns of two rows of a lane, eight rows apart.
  __device__ __forceinline__ void put_rows(GradientShared& shared, RowSum which, float low, float high) const {
    low = lane_sum(low, 4);
    high = lane_sum(high, 4);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane % 4 == 0) {
      shared.rows[which][half][first + lane / 4] = low;
      shared.rows[which][half][first + lane / 4 + 8] = high;
    }
  }
};

__device__ __forceinline__ float row_sum(const GradientShared& shared, RowSum which, int t) {
  return shared.rows[which][0][t] + shared.rows[which][1][t];
}

// Products of normalised queries and keys with keys.
__device__ __forceinline__ void set_overlaps(
    GradientShared& shared, const WarpPlace& place, SquareSums& query_keys, SquareSums& key_keys) {
  const auto& gates = shared.gates.at;
  const auto normalise = [&](SquareSums& sums, DeltaChunkGate norm) {
    sums.for_each_pair([&](int r, int c, float& x, float& y) {
      const float factor = gates[norm][place.first + r];
      x *= factor * gates[kGateKeyNorm][place.square_column() + c];
      y *= factor * gates[kGateKeyNorm][place.square_column() + c + 1];
    });
  };
  query_keys.clear();
  multiply<Stored::kAsRead, Stored::kTransposed>(
      query_keys, shared.q, place.first, shared.k, place.square_column(), 0, kDim);
  normalise(query_keys, kGateQueryNorm);
  key_keys.clear();
  multiply<Stored::kAsRead, Stored::kTransposed>(
      key_keys, shared.k, place.first, shared.k, place.square_column(), 0, kDim);
  normalise(key_keys, kGateKeyNorm);
}

// X and Y, rounded with their factors, and the sums over their rows and columns.
__device__ __forceinline__ void set_pairs(
    GradientShared& shared, const WarpPlace& place, const SquareSums& query_keys, const SquareSums& key_keys) {
  const auto& gates = shared.gates.at;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  SquareSums scores, writes;
  scores.clear();
  writes.clear();
  multiply<Stored::kAsRead, Stored::kTransposed>(
      scores, shared.dout, place.first, shared.written, place.square_column(), 0, kDim);
  multiply<Stored::kAsRead, Stored::kTransposed>(
      writes, shared.y, place.first, shared.written, place.square_column(), 0, kDim);
  float score_rows[2] = {}, key_rows[2] = {};
#pragma unroll
  for (int n = 0; n < kChunk / 16; ++n) {
    float columns[2] = {};
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int half = part / 2, i = place.first + lane / 4 + 8 * half;
      const int j = place.square_column() + 8 * n + lane % 4 * 2 + part % 2;
      const float between = i >= j ? decay_between(gates[kGateSum][i], gates[kGateSum][j]) : 0.0f;
      const float x = scores.at[n][part] * between;
      shared.query_pairs.at[i][j] = __float2bfloat16_rn(x * gates[kGateKeyNorm][j]);
      shared.key_pairs.at[i][j] = __float2bfloat16_rn(x * gates[kGateQueryNorm][i]);
      if (i > j) {
        const float y = -writes.at[n][part] * between, beta = gates[kGateBeta][i];
        shared.own_pairs.at[i][j] = __float2bfloat16_rn(beta * y * gates[kGateKeyNorm][j]);
        shared.own_pairs.at[j][i] = __float2bfloat16_rn(beta * y * gates[kGateKeyNorm][i]);
        const float score = x * query_keys.at[n][part], key = y * key_keys.at[n][part];
        score_rows[half] += score;
        key_rows[half] += key;
        columns[part % 2] += score + beta * key;
      } else if (i == j) {
        shared.own_pairs.at[i][j] = __float2bfloat16_rn(0.0f);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      for (int offset = 4; offset < kWarp; offset *= 2) {
        columns[c] += __shfl_xor_sync(kAllLanes, columns[c], offset);
      }
      if (lane < 4) {
        shared.columns[place.first / 16][place.square_column() + 8 * n + lane * 2 + c] = columns[c];
      }
    }
  }
  place.put_rows(shared, kScoreRows, score_rows[0], score_rows[1]);
  place.put_rows(shared, kKeyRows, key_rows[0], key_rows[1]);
}

__device__ __forceinline__ float dot_of_pieces(const bf16* x, const bf16* y) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const float2 a = load_pair(x + i), b = load_pair(y + i);
    sum += a.x * b.x + a.y * b.y;
  }
  return sum;
}

// y . v of each token, and <D', S>.
__device__ __forceinline__ void set_dots(GradientShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kParts = kThreads / kChunk; // of a token's elements
  const int t = thread / kParts, first = thread % kParts * 8;
  float values = 0, states = 0;
#pragma unroll
  for (int d = first; d < kDim; d += kParts * 8) {
    values += dot_of_pieces(&shared.y.at[t][d], &shared.v.at[t][d]);
  }
  values = lane_sum(values, kParts);
  if (thread % kParts == 0) {
    shared.value_rows[t] = values;
  }
#pragma unroll
  for (int i = thread; i < kDim * kDim / 8; i += kThreads) {
    const int row = i / (kDim / 8), column = i % (kDim / 8) * 8;
    states += dot_of_pieces(&shared.state.at[row][column], &shared.dstate.at[row][column]);
  }
  states = lane_sum(states, kWarp);
  if (thread % kWarp == 0) {
    shared.state_parts[thread / kWarp] = states;
  }
}

// The products with the states, added to the gradients of the normalised q and k; and their sums over rows.
__device__ __forceinline__ void add_states(
    GradientShared& shared, const DeltaChunk& chunk, const WarpPlace& place, WideSums& dq, WideSums& dk) {
  const auto& gates = shared.gates.at;
  const float end = gates[kGateSum][chunk.count - 1];
  const auto add = [&](RowSum which, const TokenTile& tokens, const BfTile<kDim, kDim>& state, bool any,
                       const TokenTile& keys, WideSums& gradient, const auto& factor) {
    WideSums sums;
    sums.clear();
    if (any) {
      multiply<Stored::kAsRead, Stored::kTransposed>(sums, tokens, place.first, state, place.wide_column(), 0, kDim);
    }
    float rows[2] = {};
    sums.for_each_pair([&](int r, int c, float x, float y) {
      const float2 key = load_pair(&keys.at[place.first + r][place.wide_column() + c]);
      rows[r / 8] += x * key.x + y * key.y;
    });
    place.put_rows(shared, which, rows[0], rows[1]);
    sums.scale_rows([&](int r) { return factor(place.first + r); });
    gradient.add(sums);
  };
  add(kQueryReads, shared.dout, shared.state, chunk.is_first == 0, shared.q, dq,
      [&](int t) { return __expf(fminf(gates[kGateSum][t], 0.0f)); });
  add(kKeyReads, shared.y, shared.state, chunk.is_first == 0, shared.k, dk,
      [&](int t) { return -gates[kGateBeta][t] * __expf(fminf(gates[kGateSum][t], 0.0f)); });
  add(kKeyWrites, shared.written, shared.dstate, chunk.is_last == 0, shared.k, dk,
      [&](int t) { return decay_between(end, gates[kGateSum][t]); });
}

// Gradients of the gates of a chunk, from the sums: one warp, a lane for two neighbouring tokens.
__device__ __forceinline__ void write_gate_gradients(
    const GradientShared& shared, const DeltaChunkArgs& args, const DeltaChunk& chunk, int64_t head) {
  const auto& gates = shared.gates.at;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float sums[2], writes = 0;
  const auto place = [&](int t) { return (static_cast<int64_t>(chunk.first) + t) * args.value_heads + head; };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const float key_reads = row_sum(shared, kKeyReads, t), key_rows = row_sum(shared, kKeyRows, t);
    const float write = gates[kGateWrite][t] * row_sum(shared, kKeyWrites, t);
    float columns = 0;
#pragma unroll
    for (int w = 0; w < kRowWarps; ++w) {
      columns += shared.columns[w][t];
    }
    sums[i] = gates[kGateQuery][t] * row_sum(shared, kQueryReads, t) + row_sum(shared, kScoreRows, t) - columns -
        gates[kGateRead][t] * key_reads + gates[kGateBeta][t] * key_rows - write;
    writes += write;
    if (t < chunk.count) {
      const float read = __expf(fminf(gates[kGateSum][t], 0.0f)) * gates[kGateKeyNorm][t];
      static_cast<float*>(args.dbeta)[place(t)] = shared.value_rows[t] - read * key_reads + key_rows;
    }
  }
  float states = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    states += shared.state_parts[w];
  }
  const float end = expf(fminf(gates[kGateSum][chunk.count - 1], 0.0f)) * states + lane_sum(writes, kWarp);
  float later = sums[0] + sums[1]; // of this lane's tokens and all after them
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float after = __shfl_down_sync(kAllLanes, later, offset);
    later += lane + offset < kWarp ? after : 0.0f;
  }
  const float after = __shfl_down_sync(kAllLanes, later, 1);
  sums[1] += end + (lane + 1 < kWarp ? after : 0.0f);
  sums[0] += sums[1];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i < chunk.count) {
      static_cast<float*>(args.ddecay)[place(2 * lane + i)] = sums[i];
    }
  }
}

// The gradients before q and k were normalised, rounded, into tiles.
__device__ __forceinline__ void set_raw_gradients(
    GradientShared& shared, const WarpPlace& place, float key_dim, WideSums& dq, WideSums& dk) {
  const auto along = [&](RowSum which, const TokenTile& elements, WideSums& gradient) {
    float rows[2] = {};
    gradient.for_each_pair([&](int r, int c, float x, float y) {
      const float2 element = load_pair(&elements.at[place.first + r][place.wide_column() + c]);
      rows[r / 8] += x * element.x + y * element.y;
    });
    place.put_rows(shared, which, rows[0], rows[1]);
  };
  along(kQueryReads, shared.q, dq);
  along(kKeyReads, shared.k, dk);
  __syncthreads();
  const auto set = [&](RowSum which, DeltaChunkGate norm, float scale, const TokenTile& elements, WideSums& gradient,
                       TokenTile& to) {
    gradient.for_each_pair([&](int r, int c, float x, float y) {
      const int t = place.first + r, d = place.wide_column() + c;
      const float factor = shared.gates.at[norm][t], share = row_sum(shared, which, t) * factor * factor * scale;
      const float2 element = load_pair(&elements.at[t][d]);
      store_pair(&to.at[t][d], factor * (x - element.x * share), factor * (y - element.y * share));
    });
  };
  set(kQueryReads, kGateQueryNorm, key_dim, shared.q, dq, shared.dout);
  set(kKeyReads, kGateKeyNorm, 1, shared.k, dk, shared.written);
}

// A block has a chunk of one key head, and adds up the gradients of the value heads that share it in their order.
__global__ __launch_bounds__(kThreads, 1) void delta_chunk_gradients(const __grid_constant__ DeltaChunkArgs args) {
  auto& shared = launched_shared<GradientShared>();
  const DeltaChunk chunk = args.chunks[blockIdx.x / args.key_heads];
  if (chunk.count == 0) {
    return;
  }
  const int64_t n = chunk.first, key_head = blockIdx.x % args.key_heads, shared_by = args.value_heads / args.key_heads;
  const int count = chunk.count, key_dim = static_cast<int>(args.key_dim), value_dim = static_cast<int>(args.value_dim);
  const WarpPlace place;
  const auto fetch = [&](int64_t head) {
    load_tile<kThreads>(shared.dout, const_head_rows(args, args.dout, n, head, value_dim), count, value_dim);
    load_tile<kThreads>(shared.written, const_head_rows(args, args.written, n, head, value_dim), count, value_dim);
    load_tile<kThreads>(shared.y, const_head_rows(args, args.dwritten, n, head, value_dim), count, value_dim);
    load_tile<kThreads>(shared.v, value_rows(args, n, head), count, value_dim);
    const int64_t next = chunk.is_last != 0 ? n : n + kChunk;
    const MutableRows state = state_rows(args, args.states, n, head);
    const MutableRows dstate = state_rows(args, args.dstates, next, head);
    load_tile<kThreads>(shared.state, {state.first, state.stride}, chunk.is_first != 0 ? 0 : key_dim, value_dim);
    load_tile<kThreads>(shared.dstate, {dstate.first, dstate.stride}, chunk.is_last != 0 ? 0 : key_dim, value_dim);
    commit_copies();
  };
  load_tile<kThreads>(shared.q, key_rows(args, n, key_head, 0), count, key_dim);
  load_tile<kThreads>(shared.k, key_rows(args, n, key_head, 1), count, key_dim);
  fetch(key_head * shared_by);
  SquareSums query_keys, key_keys;
  WideSums dq, dk;
  dq.clear();
  dk.clear();
  for (int64_t head = key_head * shared_by; head < (key_head + 1) * shared_by; ++head) {
    shared.gates.load<kThreads>(args, chunk, head);
    wait_for_copies<0>();
    __syncthreads();
    if (head == key_head * shared_by) {
      set_overlaps(shared, place, query_keys, key_keys);
    }
    set_pairs(shared, place, query_keys, key_keys);
    set_dots(shared);
    __syncthreads(); // the pairs are there
    add_states(shared, chunk, place, dq, dk);
    multiply<Stored::kAsRead, Stored::kAsRead>(
        dq, shared.query_pairs, place.first, shared.k, place.wide_column(), 0, place.first + 16);
    multiply<Stored::kTransposed, Stored::kAsRead>(
        dk, shared.key_pairs, place.first, shared.q, place.wide_column(), place.first, kChunk);
    multiply<Stored::kAsRead, Stored::kAsRead>(
        dk, shared.own_pairs, place.first, shared.k, place.wide_column(), 0, kChunk);
    __syncthreads(); // the head's tiles are read, and the sums over rows are there
    if (head + 1 < (key_head + 1) * shared_by) {
      fetch(head + 1);
    }
    if (threadIdx.x < kWarp) {
      write_gate_gradients(shared, args, chunk, head);
    }
    __syncthreads(); // gates and sums are read
  }
  set_raw_gradients(shared, place, static_cast<float>(key_dim), dq, dk);
  __syncthreads();
  const auto rows = [&](int which) {
    return MutableRows{static_cast<bf16*>(args.dqkv) + key_place(args, n, key_head, which, 0), channels_of(args)};
  };
  store_tile<kThreads>(shared.dout, rows(0), count, key_dim);
  store_tile<kThreads>(shared.written, rows(1), count, key_dim);
}

} // namespace

bool has_delta_chunks() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes >= 227 * 1024;
}

void launch_chunk_gradients(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_with_shared<GradientShared>(delta_chunk_gradients, args.chunk_count * args.key_heads, kThreads, args, stream);
}

} // namespace distill::models
