#pragma once

#include "trainer/models/ops/device.cuh"

// Products of bf16 tiles in shared memory on tensor cores, with fp32 sums in registers, by the instructions
// mma.m16n8k16 and ldmatrix; and copies between such tiles and device memory.
namespace distill::models {

using bf16 = __nv_bfloat16;

// Rows are 16 bytes longer than their elements: eight neighbouring ones then lie in different banks of shared memory.
template <int kTileRows, int kTileColumns>
struct alignas(16) BfTile {
  static constexpr int kRows = kTileRows, kColumns = kTileColumns;
  bf16 at[kRows][kColumns + 8];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Begins to copy 16 bytes into shared memory, or fills them with zeros.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_word_async(void* shared, const void* global, bool inside) { // 4 bytes
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(inside ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups of this thread's copies but the last kGroups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A matrix in device memory: its first element, and the elements from a row to the next one.
struct MutableRows {
  bf16* first;
  int64_t stride;
};
struct Rows {
  const bf16* first;
  int64_t stride;
};

// Begins to copy rows of `width` elements, a multiple of 8, into a tile; what lies beyond `count` rows and the width is
// zero. All threads of the block call it.
template <int kThreads, typename Tile>
__device__ __forceinline__ void load_tile(Tile& tile, const Rows& from, int count, int width) {
  constexpr int kPieces = Tile::kColumns / 8, kStep = kThreads / kPieces; // kStep: rows that are copied at once
  static_assert(kThreads % kPieces == 0 && Tile::kRows % kStep == 0);
  const int row = static_cast<int>(threadIdx.x) / kPieces, column = static_cast<int>(threadIdx.x) % kPieces * 8;
  const int rows = column < width ? count - row : 0;
  const bf16* source = from.first + row * from.stride + column;
#pragma unroll
  for (int j = 0; j < Tile::kRows; j += kStep) {
    copy_async(&tile.at[row + j][column], source, j < rows); // nothing is read where it fills with zeros
    source += kStep * from.stride;
  }
}

template <typename Tile>
__device__ __forceinline__ void store_piece(const Tile& tile, const MutableRows& to, int row, int column) {
  *reinterpret_cast<uint4*>(to.first + row * to.stride + column) =
      *reinterpret_cast<const uint4*>(&tile.at[row][column]);
}

// Copies a tile's first `count` rows, and the first `width` elements of each, to device memory. All threads of the
// block call it, after a barrier.
template <int kThreads, typename Tile>
__device__ __forceinline__ void store_tile(const Tile& tile, const MutableRows& to, int count, int width) {
  constexpr int kPieces = Tile::kColumns / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kPieces; i += kThreads) {
    const int row = i / kPieces, column = i % kPieces * 8;
    if (row < count && column < width) {
      store_piece(tile, to, row, column);
    }
  }
}

// The same of the 16 rows from `first` on, by the warp that wrote them.
template <typename Tile>
__device__ __forceinline__ void store_warp_rows(
    const Tile& tile, const MutableRows& to, int first, int count, int width) {
  constexpr int kPieces = Tile::kColumns / 8;
  __syncwarp();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < 16 * kPieces; i += kWarp) {
    const int row = first + i / kPieces, column = i % kPieces * 8;
    if (row < count && column < width) {
      store_piece(tile, to, row, column);
    }
  }
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_transposed_matrices(unsigned (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}

// sums += the product of 16 x 16 and 16 x 8 elements.
__device__ __forceinline__ void multiply_step(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's sums: 16 rows and 8 * kParts columns, of which a lane has two neighbouring columns of two rows in each part.
template <int kParts>
struct WarpSums {
  float at[kParts][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        at[n][i] = 0;
      }
    }
  }

  // Calls f(row, column, value, value of the next column) for each pair; row and column count from the warp's first.
  template <typename F>
  __device__ __forceinline__ void for_each_pair(const F& f) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f(lane / 4 + 8 * half, 8 * n + lane % 4 * 2, at[n][2 * half], at[n][2 * half + 1]);
      }
    }
  }

  __device__ __forceinline__ void add(const WarpSums& other) {
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        at[n][i] += other.at[n][i];
      }
    }
  }

  // Multiplies each row by factor(row).
  template <typename F>
  __device__ __forceinline__ void scale_rows(const F& factor) {
    const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
    const float low = factor(row), high = factor(row + 8);
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      at[n][0] *= low;
      at[n][1] *= low;
      at[n][2] *= high;
      at[n][3] *= high;
    }
  }
};

enum class Stored {
  kAsRead, // the left operand by rows, the right one by rows of the depth
  kTransposed
};

// sums += A B over the depth [first, end), multiples of 16. A has 16 rows, from `row` on; B the sums' columns, from
// `column` on. A transposed A is stored [depth][rows]; a transposed B [columns][depth].
template <Stored kA, Stored kB, int kParts, typename TileA, typename TileB>
__device__ __forceinline__ void multiply(
    WarpSums<kParts>& sums, const TileA& a, int row, const TileB& b, int column, int first, int end) {
  static_assert(kParts % 2 == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int low = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8; // of the four matrices of 8 x 8
#pragma unroll 4
  for (int depth = first; depth < end; depth += 16) {
    unsigned left[4];
    if constexpr (kA == Stored::kAsRead) {
      load_matrices(left, &a.at[row + low + odd][depth + upper]);
    } else {
      load_transposed_matrices(left, &a.at[depth + low + upper][row + odd]);
    }
#pragma unroll
    for (int n = 0; n < kParts; n += 2) {
      unsigned right[4];
      if constexpr (kB == Stored::kAsRead) {
        load_transposed_matrices(right, &b.at[depth + low + odd][column + 8 * n + upper]);
      } else {
        load_matrices(right, &b.at[column + 8 * n + low + upper][depth + odd]);
      }
      multiply_step(sums.at[n], left, right[0], right[1]);
      multiply_step(sums.at[n + 1], left, right[2], right[3]);
    }
  }
}

__device__ __forceinline__ void store_pair(bf16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}
__device__ __forceinline__ float2 load_pair(const bf16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}

// Writes the sums, rounded, into a tile: the warp's first row and column are given.
template <int kParts, typename Tile>
__device__ __forceinline__ void store_sums(WarpSums<kParts>& sums, Tile& tile, int row, int column) {
  sums.for_each_pair([&](int r, int c, float x, float y) { store_pair(&tile.at[row + r][column + c], x, y); });
}

} // namespace distill::models
