#include "trainer/models/ops/float8.cuh"
#include "trainer/models/ops/float8_kernel.h"

namespace distill::models {

namespace {

constexpr int kPack = kColumnsUnit; // columns of a thread
constexpr int kWarps = 8; // of a block, in both passes
constexpr int kThreads = kWarps * kWarp;

// A row of zeros has the smallest scale, and no part in the product: nothing of x is lost with it, and nothing counted.
__device__ __forceinline__ float scale_of_row(float scale) {
  return scale <= kFloat8SmallestScale ? 0 : scale; // NaN stays
}

// The first pass: a block takes 256 columns of 64 rows; a warp reads one row at a time.
constexpr int kRowsOfThread = 8; // read before the first of them is used
constexpr int kBlockColumns = kWarp * kPack;
constexpr int kBlockRows = kWarps * kRowsOfThread;

template <typename T>
__global__ __launch_bounds__(kThreads) void column_magnitudes(const __grid_constant__ Float8ColumnsArgs args) {
  __shared__ float4 shared[kWarps][kBlockColumns / 4];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kBlockColumns;
  const int64_t column = first_column + lane * kPack;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kBlockRows + warp;
  const T* x = static_cast<const T*>(args.x);
  float largest[kPack] = {};
  if (column < args.columns) {
    Pack<T, kPack> packs[kRowsOfThread];
    float scales[kRowsOfThread];
#pragma unroll
    for (int j = 0; j < kRowsOfThread; ++j) {
      const int64_t row = first_row + j * kWarps;
      scales[j] = 0;
      packs[j] = {};
      if (row < args.rows) {
        packs[j] = load_pack<T, kPack>(x + row * args.columns + column);
        scales[j] = scale_of_row(args.row_scale[row]);
      }
    }
#pragma unroll
    for (int j = 0; j < kRowsOfThread; ++j) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        largest[i] = larger(largest[i], fabsf(packs[j][i] * scales[j]));
      }
    }
  }
  static_assert(kPack == 8);
  shared[warp][lane * 2] = {largest[0], largest[1], largest[2], largest[3]};
  shared[warp][lane * 2 + 1] = {largest[4], largest[5], largest[6], largest[7]};
  __syncthreads();
  static_assert(kBlockColumns == kThreads);
  const int own = warp * kWarp + lane;
  if (first_column + own < args.columns) {
    const float* maxima = reinterpret_cast<const float*>(shared);
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total = larger(total, maxima[w * kBlockColumns + own]);
    }
    // Floats that are not negative are ordered as their bits are, and NaN, whose sign larger() clears, above infinity.
    atomicMax(reinterpret_cast<int*>(args.largest) + first_column + own, __float_as_int(total));
  }
}

// The second pass: a block takes 64 columns of 128 rows, which become 64 rows of 128 bytes. A thread rounds 8 columns
// of four rows, and turns them into a word of each column.
constexpr int kTileColumns = 64, kTileRows = 128;
constexpr int kTilePacks = kTileColumns / kPack, kTileQuads = kTileRows / 16;
static_assert(kTilePacks == kTileQuads && kTilePacks * kTileRows / 4 == kThreads);

template <typename T, bool kCounts>
__global__ __launch_bounds__(kThreads) void round_columns(const __grid_constant__ Float8ColumnsArgs args) {
  // The 16 bytes `quad` of row c are at place quad ^ (c / 8), so that neither the words that a warp writes (all packs,
  // of one quad) nor the 16 bytes that 8 lanes read (one row) share a bank.
  __shared__ uint4 tile[kTileColumns][kTileQuads];
  __shared__ float4 inverses[kTileColumns / 4]; // 1 / scale
  const int thread = threadIdx.x;
  const int pack = thread % kTilePacks, group = thread / kTilePacks;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTileRows;
  const int64_t column = first_column + pack * kPack, row = first_row + group * 4;
  const T* x = static_cast<const T*>(args.x) + row * args.columns + column;
  Pack<T, kPack> packs[4]{};
  float scales[4]{};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (column < args.columns && row + j < args.rows) {
      packs[j] = load_pack<T, kPack>(x + j * args.columns);
      scales[j] = scale_of_row(args.row_scale[row + j]);
    }
  }
  auto* counts = reinterpret_cast<unsigned long long*>(args.counts); // the only 64-bit integers with an atomic sum
  if (const int64_t own = first_column + thread; thread < kTileColumns && own < args.columns) {
    const float scale = float8_scale(args.largest[own]);
    reinterpret_cast<float*>(inverses)[thread] = 1.0F / scale;
    if (blockIdx.y == 0) {
      args.scale[own] = scale;
      if (kCounts && !isfinite(scale)) {
        atomicAdd(&counts[kFloat8BadRows], 1ULL);
      }
    }
  }
  __syncthreads();
  const float4 low = inverses[pack * 2], high = inverses[pack * 2 + 1];
  const float inverse[kPack] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  uint32_t rows[2][4]; // four columns in a word
  unsigned lost = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float scaled[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      scaled[i] = packs[j][i] * scales[j];
    }
    if constexpr (kCounts) { // of the columns, each 8th is in the sample
      static_assert(kPack == kFloat8SampledRows);
      lost += lost_in(Pack<float, 1>{{scaled[0]}}, inverse[0]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Pack<float, 4> four;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        four.element[i] = scaled[half * 4 + i] * inverse[half * 4 + i];
      }
      store_float8(reinterpret_cast<uint8_t*>(&rows[half][j]), four, 1.0F);
      rows[half][j] = row + j < args.rows ? rows[half][j] : 0; // zeros even where the scale is NaN
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t columns[4];
    transpose_words(rows[half], columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      auto* words = reinterpret_cast<uint32_t*>(tile[pack * kPack + half * 4 + i]);
      words[(group / 4 ^ pack) * 4 + group % 4] = columns[i];
    }
  }
  __syncthreads();
  auto* values = static_cast<uint8_t*>(args.values);
#pragma unroll
  for (int unit = thread; unit < kTileColumns * kTileQuads; unit += kThreads) {
    const int own = unit / kTileQuads, quad = unit % kTileQuads;
    const int64_t out_row = first_column + own, out_column = first_row + quad * 16;
    if (out_row < args.columns && out_column < args.out_columns) {
      *reinterpret_cast<uint4*>(values + out_row * args.out_columns + out_column) = tile[own][quad ^ (own / kPack)];
    }
  }
  if constexpr (kCounts) {
    lost = __reduce_add_sync(kAllLanes, column < args.columns ? lost : 0);
    if (thread % kWarp == 0 && lost != 0) {
      atomicAdd(&counts[kFloat8Lost], lost);
    }
    if (thread == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      const int64_t sampled = ceil_div<int64_t>(args.columns, kFloat8SampledRows) * args.rows;
      atomicAdd(&counts[kFloat8Values], static_cast<unsigned long long>(sampled));
    }
  }
}

unsigned blocks(int64_t size, int64_t of_block) {
  return static_cast<unsigned>(ceil_div(size, of_block));
}

template <typename F>
const char* launch(const Float8ColumnsArgs& args, const F& f) {
  with_type(args.type, [&](auto tag) {
    if constexpr (!std::is_same_v<typename decltype(tag)::type, double>) {
      f(tag);
    }
  });
  return launch_problem();
}

} // namespace

const char* launch_float8_column_magnitudes(const Float8ColumnsArgs& args, CUstream_st* stream) {
  const dim3 grid(blocks(args.columns, kBlockColumns), blocks(args.rows, kBlockRows));
  return launch(args, [&](auto tag) {
    column_magnitudes<typename decltype(tag)::type><<<grid, dim3(kWarp, kWarps), 0, stream>>>(args);
  });
}

const char* launch_float8_round_columns(const Float8ColumnsArgs& args, CUstream_st* stream) {
  const dim3 grid(blocks(args.columns, kTileColumns), blocks(args.out_columns, kTileRows));
  return launch(args, [&](auto tag) {
    using T = typename decltype(tag)::type;
    (args.counts == nullptr ? round_columns<T, false> : round_columns<T, true>)<<<grid, kThreads, 0, stream>>>(args);
  });
}

} // namespace distill::models
