// The copies of a thread in the cluster row kernel: its own columns, prefetched into shared memory tile by tile.
#pragma once

#include <utility>

#include "losses/rows/cuda/cluster/reduce.cuh"

namespace distill::losses::cluster {

constexpr int kVector = kClusterVector;
constexpr int kThreads = kClusterThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileColumns = kThreads * kVector;

// Sizes that follow from the slice of a row in a block; kTiles: the most tiles of a slice.
template <int kTilesOfSlice, typename Logit, bool kTeacher>
struct Geometry {
  static constexpr int kTiles = kTilesOfSlice;
  static constexpr int kBlocks = kTeacher ? 1 : 2; // on an SM: one side needs half the memory and half the registers
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(Logit));
  static constexpr uint32_t kSideBytes = kTileColumns * sizeof(Logit);
  static constexpr uint32_t kSlotBytes = kSideBytes * (kTeacher ? 2 : 1);
  static constexpr int kReduceBytes = static_cast<int>(sizeof(ClusterReduceSlots<kWarps>));
  static constexpr int kAvailable = (kBlocks == 1 ? 227 : 113) * 1024;
  static constexpr int kFit = (kAvailable - kReduceBytes) / static_cast<int>(kSlotBytes);
  static constexpr int kSlots = kFit < 24 ? kFit : 24; // tiles that shared memory holds: a row and prefetched tiles
  static constexpr int kRowsAhead = (kSlots - 1) / kTiles; // later rows whose copies have begun when phase 2 begins
  static constexpr int kBytes = kSlots * static_cast<int>(kSlotBytes) + kReduceBytes;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The offset is a constant of the instruction: as part of a pointer it would need registers, and all are in use.
template <int kBytes, int kOffset>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1 + %2], 16;" ::"r"(shared), "l"(global), "n"(kOffset) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1 + %2], 8;" ::"r"(shared), "l"(global), "n"(kOffset) : "memory");
  }
}

// Calls body(constant) with integral constants from 0 to kCount - 1.
template <int kCount, typename Body>
__device__ __forceinline__ void for_constants(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for the copy of a row's tile, when kSlots copies were issued from the row's first tile on: at most
// kSlots - 1 - tile copies may be pending. `tile` is a constant after unrolling.
template <int kSlots, int kTile = 0>
__device__ __forceinline__ void wait_for_tile(int tile) {
  if (tile == kTile) {
    wait_copies<kSlots - 1 - kTile>();
  } else if constexpr (kTile + 1 < kMaxTiles) {
    wait_for_tile<kSlots, kTile + 1>(tile);
  }
}

__device__ __forceinline__ void read_vector(uint32_t address, float (&z)[kVector], const float*) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(z[0]), "=f"(z[1]), "=f"(z[2]), "=f"(z[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void read_vector(uint32_t address, float (&z)[kVector], const __nv_bfloat16*) {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "r"(address) : "memory");
  z[0] = __uint_as_float(low << 16U);
  z[1] = __uint_as_float(low & 0xffff0000U);
  z[2] = __uint_as_float(high << 16U);
  z[3] = __uint_as_float(high & 0xffff0000U);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Four columns of which only the first `valid` exist; the others are -inf.
__device__ __forceinline__ void copy_part(uint32_t shared, const float* global, int valid) {
#pragma unroll 1
  for (int j = 0; j < kVector; ++j) {
    if (j < valid) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared + 4 * j), "l"(global + j) : "memory");
    } else {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared + 4 * j), "f"(-INFINITY) : "memory");
    }
  }
}

__device__ __forceinline__ void copy_part(uint32_t shared, const __nv_bfloat16* global, int valid) {
  uint16_t z[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    z[j] = j < valid ? __bfloat16_as_ushort(global[j]) : uint16_t{0xff80}; // cp.async copies at least four bytes
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared + 2 * j), "h"(z[j]) : "memory");
  }
}

// This thread's columns: kVector of them in each tile, as far as they exist in the block's slice.
struct Share {
  int first; // first column, in the first tile
  int full; // tiles in which all kVector columns exist
  int part; // columns that exist in tile `full`

  __device__ int valid(int tile) const {
    return tile < full ? kVector : (tile == full ? part : 0);
  }
};

// Copies this thread's columns, tile after tile, of all rows of the cluster whose token is not ignored. Targets are
// read one row before they are used.
template <typename G, typename Logit, bool kTeacher>
class Loader {
 public:
  __device__ Loader(const RowArgs& args, const Share& share, int row, int row_step)
      : args_(args), share_(share), row_(row - row_step), row_step_(row_step), ahead_(target_of(row)) {}

  // The row that is being copied, or one beyond the last.
  __device__ int row() const {
    return row_;
  }

  // Goes to the next row that is not ignored; calls skipped(row) for the ignored rows before it.
  template <typename Skipped>
  __device__ __forceinline__ void next_row(const Skipped& skipped) {
    row_ += row_step_;
    while (ahead_ == kIgnore) {
      skipped(row_);
      row_ += row_step_;
      ahead_ = target_of(row_);
    }
    ahead_ = target_of(row_ + row_step_);
    at_ = row_ * args_.student_stride + share_.first;
  }

  // Begins the copy of a tile of the current row into one slot: always one group of copies, empty after the last row.
  template <int kTile>
  __device__ __forceinline__ void issue(uint32_t slot) const {
    if (row_ < args_.num_rows) {
      constexpr int kOffset = kTile * static_cast<int>(G::kSideBytes);
      if (kTile < share_.full) {
        copy_async<G::kVectorBytes, kOffset>(slot, student());
        if constexpr (kTeacher) {
          copy_async<G::kVectorBytes, kOffset>(slot + G::kSideBytes, teacher());
        }
      } else {
        copy_part(slot, student() + kTile * kTileColumns, share_.valid(kTile));
        if constexpr (kTeacher) {
          copy_part(slot + G::kSideBytes, teacher() + kTile * kTileColumns, share_.valid(kTile));
        }
      }
    }
    commit_copies();
  }

 private:
  static constexpr int kIgnore = static_cast<int>(kIgnoreIndex);

  // This thread's first column of the row.
  __device__ __forceinline__ const Logit* student() const {
    return static_cast<const Logit*>(args_.student) + at_;
  }
  __device__ __forceinline__ const Logit* teacher() const {
    return static_cast<const Logit*>(args_.teacher) + at_ + row_ * (args_.teacher_stride - args_.student_stride);
  }

  // Labels are smaller than 2^31, so the lower half of the little-endian 64-bit number is the label.
  __device__ __forceinline__ int target_of(int row) const {
    return args_.targets == nullptr || row >= args_.num_rows
        ? -1
        : reinterpret_cast<const int*>(args_.targets)[2 * static_cast<int64_t>(row)];
  }

  const RowArgs& args_;
  const Share& share_;
  int row_;
  const int row_step_;
  int ahead_;
  int64_t at_ = 0; // of this thread's first column in the student's logits
};

#endif

} // namespace distill::losses::cluster
