#include "trainer/models/ops/float8.cuh"
#include "trainer/models/ops/float8_kernel.h"

namespace distill::models {

namespace {

constexpr int kTileWords = 32; // a tile is 128 x 128 bytes: 32 words wide, 32 groups of four rows high
constexpr int kTileBytes = kTileWords * 4;
constexpr int kWarpsPerBlock = 8;

// A thread block transposes one tile. In the tile's transpose, the word of group g in row r is at place g ^ (r / 4) of
// its row, so that neither the writes (one g, every fourth r) nor the reads (one r, all g) of a warp share a bank.
__global__ __launch_bounds__(kWarpsPerBlock* kWarp) void transpose(const __grid_constant__ Float8TransposeArgs args) {
  __shared__ uint32_t tile[kTileBytes][kTileWords];
  const int lane = threadIdx.x, warp = threadIdx.y;
  const int64_t row_words = args.columns / 4, column_words = args.out_columns / 4; // of the matrix, of its transpose
  const int64_t first_word = static_cast<int64_t>(blockIdx.x) * kTileWords;
  const int64_t first_group = static_cast<int64_t>(blockIdx.y) * kTileWords;
  const auto* in = static_cast<const uint32_t*>(args.in);
  auto* out = static_cast<uint32_t*>(args.out);
  for (int group = warp; group < kTileWords; group += kWarpsPerBlock) {
    if (first_word + lane < row_words && first_group + group < column_words) {
      const int64_t row = (first_group + group) * 4;
      const uint32_t* from = in + row * row_words + first_word + lane;
      uint32_t rows[4], columns[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = row + i < args.rows ? from[i * row_words] : 0;
      }
      transpose_words(rows, columns);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tile[4 * lane + j][group ^ lane] = columns[j];
      }
    }
  }
  __syncthreads();
  for (int row = warp; row < kTileBytes; row += kWarpsPerBlock) {
    const int64_t out_row = first_word * 4 + row;
    if (out_row < args.columns && first_group + lane < column_words) {
      out[out_row * column_words + first_group + lane] = tile[row][lane ^ (row / 4)];
    }
  }
}

} // namespace

const char* launch_float8_transpose(const Float8TransposeArgs& args, CUstream_st* stream) {
  const dim3 block(kWarp, kWarpsPerBlock);
  const dim3 grid(
      static_cast<unsigned>(ceil_div<int64_t>(args.columns, kTileBytes)),
      static_cast<unsigned>(ceil_div<int64_t>(args.out_columns, kTileBytes)));
  transpose<<<grid, block, 0, stream>>>(args);
  return launch_problem();
}

} // namespace distill::models
