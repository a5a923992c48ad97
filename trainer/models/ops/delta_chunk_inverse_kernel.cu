#include "trainer/models/ops/delta_chunk.cuh"

// What the chunks of a gated delta rule need that does not depend on the states, for all chunks and heads side by side:
// the gates, the inverse T of each chunk's triangular matrix, and products of T.
namespace distill::models {

namespace {

constexpr int kThreads = 128;
constexpr int kBlock = 16; // rows of the blocks in which a matrix is inverted
constexpr int kBlocks = kChunk / kBlock;
constexpr float kStrongestDecay = -110; // exp of it is 0; sums of weaker ones keep their digits

__global__ __launch_bounds__(256) void delta_chunk_table(const __grid_constant__ DeltaChunkArgs args) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (index >= args.chunk_count) {
    return;
  }
  const auto index_of = [&](int64_t segment) { return args.cu_seqlens[segment] / kDeltaChunk + segment; };
  int64_t segment = 0;
  for (int64_t end = args.segments; end - segment > 1;) { // the last segment whose chunks do not begin after `index`
    const int64_t middle = segment + (end - segment) / 2;
    (index_of(middle) <= index ? segment : end) = middle;
  }
  const Segment tokens = segment_of(args, segment);
  const int64_t begin = (index - index_of(segment)) * kDeltaChunk;
  const int64_t count = max(min(tokens.length - begin, kDeltaChunk), static_cast<int64_t>(0));
  args.chunks[index] = {
      static_cast<int32_t>(tokens.first + begin), static_cast<int32_t>(count), begin == 0 ? 1 : 0,
      begin + count == tokens.length ? 1 : 0};
}

// A warp for each chunk and value head, a lane for two neighbouring tokens.
__global__ __launch_bounds__(256) void delta_chunk_gates(const __grid_constant__ DeltaChunkArgs args) {
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (256 / kWarp) + threadIdx.x / kWarp;
  if (task >= args.chunk_count * args.value_heads) {
    return;
  }
  const DeltaChunk chunk = args.chunks[task / args.value_heads];
  const int64_t head = task % args.value_heads, key_head = head / (args.value_heads / args.key_heads);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float decay[2], sums[2];
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const int64_t gate = (static_cast<int64_t>(chunk.first) + t) * args.value_heads + head;
    decay[i] = t < chunk.count ? fmaxf(static_cast<const float*>(args.decay)[gate], kStrongestDecay) : 0.0f;
  }
  float before = decay[0] + decay[1];
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const float earlier = __shfl_up_sync(kAllLanes, before, offset);
    before += lane >= offset ? earlier : 0.0f;
  }
  const float end = __shfl_sync(kAllLanes, before, kWarp - 1);
  before = __shfl_up_sync(kAllLanes, before, 1);
  sums[0] = (lane == 0 ? 0.0f : before) + decay[0];
  sums[1] = lane == kWarp - 1 ? end : sums[0] + decay[1];
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    if (t >= chunk.count) {
      continue;
    }
    const int64_t n = static_cast<int64_t>(chunk.first) + t;
    const float* norms = static_cast<const float*>(args.norms) + (n * args.key_heads + key_head) * 3;
    const float beta = static_cast<const float*>(args.beta)[n * args.value_heads + head];
    const float since_start = expf(fminf(sums[i], 0.0f)), until_end = expf(fminf(end - sums[i], 0.0f));
    const auto put = [&](DeltaChunkGate gate, float value) {
      args.gates[(gate * args.value_heads + head) * args.tokens + n] = value;
    };
    put(kGateSum, sums[i]);
    put(kGateBeta, beta);
    put(kGateQueryNorm, norms[0]);
    put(kGateKeyNorm, norms[1]);
    put(kGateRead, beta * since_start * norms[1]);
    put(kGateWrite, until_end * norms[1]);
    put(kGateQuery, since_start * norms[0]);
  }
}

// A matrix is first L; then T, whose blocks below the diagonal lie in the places of the blocks mirrored at it, each as
// it is. At last its place has two rounded matrices.
union SquareMatrix {
  float at[kChunk][kChunk + 8];
  SquareTile rounded[2];
};

struct InverseShared {
  TokenTile k;
  TokenTile other; // q, then v or dout
  SquareMatrix matrix;
  SquareTile scores;
  float sums[kBlocks - 1][kBlock][kBlock + 4];
  ChunkGates gates;
};

// Where row r of T's block (i, j) lies, i >= j.
__device__ __forceinline__ float* inverse_row(SquareMatrix& matrix, int i, int j, int r) {
  return &matrix.at[kBlock * j + r][kBlock * i];
}

// The inverse of L's block on the diagonal, in its place, by one warp: a lane for each column.
__device__ __forceinline__ void invert_diagonal(SquareMatrix& matrix, int block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float column[kBlock];
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    const float4* row = reinterpret_cast<const float4*>(&matrix.at[kBlock * block + r][kBlock * block]);
    float entries[kBlock];
#pragma unroll
    for (int j = 0; j < kBlock / 4; ++j) {
      const float4 four = 4 * j < r ? row[j] : float4{};
      entries[4 * j] = four.x;
      entries[4 * j + 1] = four.y;
      entries[4 * j + 2] = four.z;
      entries[4 * j + 3] = four.w;
    }
    float sum = r == lane ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < r; ++j) {
      sum -= entries[j] * column[j];
    }
    column[r] = sum;
  }
  __syncwarp();
  if (lane < kBlock) {
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      inverse_row(matrix, block, block, r)[lane] = column[r];
    }
  }
}

// sums += factor * (row of 16) (16 x 16), for 8 columns of a lane.
__device__ __forceinline__ void add_product(float (&sums)[8], const float* row, const float* matrix, int pitch) {
#pragma unroll
  for (int k = 0; k < kBlock; ++k) {
    const float x = row[k];
    const float4 low = *reinterpret_cast<const float4*>(matrix + k * pitch);
    const float4 high = *reinterpret_cast<const float4*>(matrix + k * pitch + 4);
    sums[0] += x * low.x;
    sums[1] += x * low.y;
    sums[2] += x * low.z;
    sums[3] += x * low.w;
    sums[4] += x * high.x;
    sums[5] += x * high.y;
    sums[6] += x * high.z;
    sums[7] += x * high.w;
  }
}

// T's blocks below the one on the diagonal, by one warp: T_ij = -T_ii sum over j <= k < i of L_ik T_kj.
__device__ __forceinline__ void invert_column(SquareMatrix& matrix, int j, float (&scratch)[kBlock][kBlock + 4]) {
  constexpr int kPitch = kChunk + 8;
  const int r = static_cast<int>(threadIdx.x) % kWarp / 2, column = static_cast<int>(threadIdx.x) % 2 * 8;
  for (int i = j + 1; i < kBlocks; ++i) {
    float sums[8] = {}, products[8] = {};
    for (int k = j; k < i; ++k) {
      add_product(sums, &matrix.at[kBlock * i + r][kBlock * k], inverse_row(matrix, k, j, 0) + column, kPitch);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      scratch[r][column + c] = -sums[c];
    }
    __syncwarp();
    add_product(products, inverse_row(matrix, i, i, r), &scratch[0][column], kBlock + 4);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      inverse_row(matrix, i, j, r)[column + c] = products[c];
    }
    __syncwarp();
  }
}

// Rounds T twice: forward, with the factors beta exp(g) / length of k and beta of its columns; backward, with
// exp(g_end - g) / length of k of its rows, and as it is.
template <bool kBackward>
__device__ __forceinline__ void round_inverse(InverseShared& shared) {
  const int row = static_cast<int>(threadIdx.x) / 2, first = static_cast<int>(threadIdx.x) % 2 * (kChunk / 2);
  const int i = row / kBlock;
  float values[kChunk / 2];
#pragma unroll
  for (int c = 0; c < kChunk / 2; ++c) {
    const int j = (first + c) / kBlock;
    values[c] = i < j ? 0.0f : inverse_row(shared.matrix, i, j, row % kBlock)[c % kBlock];
  }
  __syncthreads(); // all of T is read: the rounded matrices take its place
#pragma unroll
  for (int c = 0; c < kChunk / 2; c += 2) {
    const int j = first + c;
    const auto& gates = shared.gates.at;
    if constexpr (kBackward) {
      const float factor = gates[kGateWrite][row];
      store_pair(&shared.matrix.rounded[0].at[row][j], values[c] * factor, values[c + 1] * factor);
      store_pair(&shared.matrix.rounded[1].at[row][j], values[c], values[c + 1]);
    } else {
      store_pair(
          &shared.matrix.rounded[0].at[row][j], values[c] * gates[kGateRead][j],
          values[c + 1] * gates[kGateRead][j + 1]);
      store_pair(
          &shared.matrix.rounded[1].at[row][j], values[c] * gates[kGateBeta][j],
          values[c + 1] * gates[kGateBeta][j + 1]);
    }
  }
}

// The scores, rounded, and L below the diagonal, of a warp's 16 rows.
__device__ __forceinline__ void set_scores(InverseShared& shared, int first) {
  const auto& gates = shared.gates.at;
  const auto factor = [&](DeltaChunkGate norm, int i, int j) {
    return gates[norm][i] * gates[kGateKeyNorm][j] * decay_between(gates[kGateSum][i], gates[kGateSum][j]);
  };
  WarpSums<kChunk / 8> products;
  products.clear();
  multiply<Stored::kAsRead, Stored::kTransposed>(products, shared.other, first, shared.k, 0, 0, kDim);
  products.for_each_pair([&](int r, int j, float x, float y) {
    const int i = first + r;
    store_pair(
        &shared.scores.at[i][j], i >= j ? x * factor(kGateQueryNorm, i, j) : 0.0f,
        i > j ? y * factor(kGateQueryNorm, i, j + 1) : 0.0f);
  });
  products.clear();
  multiply<Stored::kAsRead, Stored::kTransposed>(products, shared.k, first, shared.k, 0, 0, kDim);
  products.for_each_pair([&](int r, int j, float x, float y) {
    const int i = first + r;
    const float beta = gates[kGateBeta][i];
    if (i > j) {
      shared.matrix.at[i][j] = beta * x * factor(kGateKeyNorm, i, j);
    }
    if (i > j + 1) {
      shared.matrix.at[i][j + 1] = beta * y * factor(kGateKeyNorm, i, j + 1);
    }
  });
}

// A block has a chunk of one value head.
template <bool kBackward>
__global__ __launch_bounds__(kThreads, 3) void delta_chunk_inverse(const __grid_constant__ DeltaChunkArgs args) {
  auto& shared = launched_shared<InverseShared>();
  const DeltaChunk chunk = args.chunks[blockIdx.x / args.value_heads];
  if (chunk.count == 0) {
    return;
  }
  const int64_t n = chunk.first, head = blockIdx.x % args.value_heads;
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const int count = chunk.count, key_dim = static_cast<int>(args.key_dim), value_dim = static_cast<int>(args.value_dim);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, first = warp * 16;
  load_tile<kThreads>(shared.k, key_rows(args, n, key_head, 1), count, key_dim);
  load_tile<kThreads>(shared.other, key_rows(args, n, key_head, 0), count, key_dim);
  commit_copies();
  shared.gates.load<kThreads>(args, chunk, head);
  wait_for_copies<0>();
  __syncthreads();
  set_scores(shared, first);
  __syncthreads(); // L and the scores are there, and q is not read again
  load_tile<kThreads>(
      shared.other, kBackward ? const_head_rows(args, args.dout, n, head, value_dim) : value_rows(args, n, head), count,
      value_dim);
  commit_copies();
  invert_diagonal(shared.matrix, warp);
  __syncthreads();
  if (warp < kBlocks - 1) {
    invert_column(shared.matrix, warp, shared.sums[warp]);
  }
  __syncthreads();
  round_inverse<kBackward>(shared);
  wait_for_copies<0>();
  __syncthreads();
  WarpSums<kDim / 8> products;
  products.clear();
  SquareTile& rounded = shared.matrix.rounded[1];
  if constexpr (kBackward) {
    WarpSums<kChunk / 8> scores; // times T
    scores.clear();
    multiply<Stored::kAsRead, Stored::kAsRead>(scores, shared.scores, first, rounded, 0, 0, first + 16);
    multiply<Stored::kTransposed, Stored::kAsRead>(
        products, shared.matrix.rounded[0], first, shared.k, 0, first, kChunk);
    __syncthreads(); // T and k are read
    store_sums(scores, rounded, first, 0);
    store_sums(products, shared.k, first, 0);
    products.clear();
    __syncthreads();
    multiply<Stored::kTransposed, Stored::kAsRead>(products, rounded, first, shared.other, 0, first, kChunk);
  } else {
    multiply<Stored::kAsRead, Stored::kAsRead>(products, shared.matrix.rounded[0], first, shared.k, 0, 0, first + 16);
    __syncthreads(); // k is read
    store_sums(products, shared.k, first, 0);
    products.clear();
    multiply<Stored::kAsRead, Stored::kAsRead>(products, rounded, first, shared.other, 0, 0, first + 16);
  }
  __syncthreads(); // v, or dout, is read
  store_sums(products, shared.other, first, 0);
  __syncthreads();
  store_tile<kThreads>(shared.k, head_rows(args, args.reads, n, head, key_dim), count, key_dim);
  store_tile<kThreads>(
      shared.other, head_rows(args, kBackward ? args.dwritten : args.written, n, head, value_dim), count, value_dim);
  if constexpr (!kBackward) {
    store_tile<kThreads>(shared.scores, head_rows(args, args.scores, n, head, kChunk), count, kChunk);
  }
}

} // namespace

void launch_chunk_gates(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_delta_norms(args, stream);
  delta_chunk_table<<<static_cast<unsigned>(ceil_div<int64_t>(args.chunk_count, 256)), 256, 0, stream>>>(args);
  delta_chunk_gates<<<warps_for(args.chunk_count * args.value_heads), 256, 0, stream>>>(args);
}

void launch_chunk_inverse_forward(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_with_shared<InverseShared>(
      delta_chunk_inverse<false>, args.chunk_count * args.value_heads, kThreads, args, stream);
}

void launch_chunk_inverse_backward(const DeltaChunkArgs& args, CUstream_st* stream) {
  launch_with_shared<InverseShared>(
      delta_chunk_inverse<true>, args.chunk_count * args.value_heads, kThreads, args, stream);
}

} // namespace distill::models
