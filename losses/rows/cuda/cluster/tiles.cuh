// This file says how many tiles of the rows are in shared memory, and has the warp that copies them.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "losses/rows/cuda/cluster/row_slots.cuh"

namespace distill::losses::cluster {

constexpr int kVector = kClusterVector;
constexpr int kWorkers = kClusterThreads;
constexpr int kTileColumns = kWorkers * kVector;

// Where registers are moved, a thread has these. The block starts with 96 each: of the 480 of a scheduler's five warps,
// four workers get 104 and the warp of the reducer's group keeps 64.
constexpr int kWorkerRegisters = 104;
constexpr int kReducerRegisters = 64;

// ShiftedBf16 are bf16 logits whose rows may start anywhere: copies begin at the multiple of 16 bytes before a tile.
struct ShiftedBf16 {
  __nv_bfloat16 value;
};

constexpr int kCopyBytes = 16; // bulk copies begin at multiples of it, and have a multiple of it

// These sizes follow from the slice of a row in a block. kTiles: the most tiles of it. kKeeps: whether a and q of a
// row are kept from its columns phase to its gradient phase: in registers as far as they hold them, the rest in shared
// memory. fp32 logits leave as much room as a and q need, bf16 logits do not.
template <int kTilesOfSlice, typename Logit, bool kTeacher, bool kKeeps>
struct Geometry {
  static constexpr int kTiles = kTilesOfSlice;
  static constexpr int kBlocks = kTeacher ? 1 : 2; // on an SM: one side needs half the memory and half the registers
  // A scheduler's warps share its registers. With one block on an SM, registers move from a group of four warps, of
  // which one reduces, to the workers; with two blocks, two warps more leave enough for all.
  static constexpr bool kMovesRegisters = kTeacher;
  static constexpr int kHelpers = (kMovesRegisters ? 4 : 2) * kWarp; // threads before the workers
  static constexpr int kThreads = kHelpers + kWorkers;
  static constexpr int kBarrierBytes = 2 * static_cast<int>(sizeof(uint64_t)); // of a slot: full, empty
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(Logit));
  static constexpr bool kMayShift = std::is_same_v<Logit, ShiftedBf16>;
  static constexpr int kSideBytes = kTileColumns * static_cast<int>(sizeof(Logit)) + (kMayShift ? kCopyBytes : 0);
  static constexpr int kSlotBytes = kSideBytes * (kTeacher ? 2 : 1);
  static constexpr int kSlotStride = kSlotBytes + kBarrierBytes; // a slot's barriers follow its logits
  static constexpr int kRegisterTiles = !kKeeps || kTiles < kMaxRegisterTiles ? kTiles : kMaxRegisterTiles;
  static constexpr int kStoredTiles = kTiles - kRegisterTiles; // tiles whose a and q are stored in shared memory
  static constexpr bool kStoredInSlots = sizeof(Logit) == 4;
  static constexpr int kStoredSideBytes = kTileColumns * static_cast<int>(sizeof(float));
  static constexpr int kStoreBytes = kStoredInSlots ? 0 : kStoredTiles * 2 * kStoredSideBytes;
  static constexpr int kHeldTiles = kStoredInSlots ? kStoredTiles : 0; // slots that are free only after the gradient
  static constexpr int kFit =
      ((kBlocks == 1 ? 227 : 113) * 1024 - static_cast<int>(sizeof(RowSlots)) - kStoreBytes) / kSlotStride;
  // Shared memory has the tiles of a row, and as many of the next one as fit.
  static constexpr int kSlots = kFit < 2 * kTiles ? kFit : 2 * kTiles;
  // These tiles of the next row are normalised before a row's columns phase, while the row's first reduction runs: as
  // far as their copies need not wait for the slots that the gradient phase frees.
  static constexpr int kEarlyTiles = std::clamp(kSlots - kTiles - kHeldTiles, 0, 3);
  // These are before its gradient phase, while the second reduction runs; the others need those slots.
  static constexpr int kMiddleTiles = std::min(kTiles, kSlots - kHeldTiles);
  static constexpr int kRingBytes = kSlots * kSlotStride;
  static constexpr int kStoreOffset = kRingBytes;
  static constexpr int kReduceOffset = kStoreOffset + kStoreBytes;
  static constexpr int kBytes = kReduceOffset + static_cast<int>(sizeof(RowSlots));
  static_assert(kSlots >= kTiles && kSlots > kHeldTiles, "too little shared memory for the pipeline");
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Calls body(constant) with integral constants from 0 to kCount - 1.
template <int kCount, typename Body>
__device__ __forceinline__ void for_constants(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

// At the address of read_vector and write_vector lie floats.
constexpr const float* kFloats = nullptr;

__device__ __forceinline__ void read_vector(uint32_t address, float (&z)[kVector], const float*) {
  const float4 v = load_shared_float4(address);
  z[0] = v.x;
  z[1] = v.y;
  z[2] = v.z;
  z[3] = v.w;
}

__device__ __forceinline__ void read_vector(uint32_t address, float (&z)[kVector], const __nv_bfloat16*) {
  const uint2 v = load_shared_uint2(address);
  z[0] = __uint_as_float(v.x << 16U);
  z[1] = __uint_as_float(v.x & 0xffff0000U);
  z[2] = __uint_as_float(v.y << 16U);
  z[3] = __uint_as_float(v.y & 0xffff0000U);
}

// Reads columns that begin `shift` elements, fewer than 8, behind the address, which is a multiple of 8 bytes.
__device__ __forceinline__ void read_shifted(uint32_t address, uint32_t shift, float (&z)[kVector]) {
  const uint32_t even = address + (shift & 4U) * 2;
  const uint2 first = load_shared_uint2(even);
  const uint2 rest = load_shared_uint2(even + 8);
  uint32_t low = first.x;
  uint32_t middle = first.y;
  uint32_t high = rest.x;
  if ((shift & 2U) != 0) {
    low = first.y;
    middle = rest.x;
    high = rest.y;
  }
  const bool odd = (shift & 1U) != 0;
  z[0] = __uint_as_float(odd ? low & 0xffff0000U : low << 16U);
  z[1] = __uint_as_float(odd ? middle << 16U : low & 0xffff0000U);
  z[2] = __uint_as_float(odd ? middle & 0xffff0000U : middle << 16U);
  z[3] = __uint_as_float(odd ? high << 16U : middle & 0xffff0000U);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void write_vector(uint32_t address, const float (&z)[kVector], const float*) {
  store_shared(address, make_float4(z[0], z[1], z[2], z[3]));
}

__device__ __forceinline__ void write_vector(uint32_t address, const float (&z)[kVector], const __nv_bfloat16*) {
  store_shared(address, make_uint2(pack_bf16(z[0], z[1]), pack_bf16(z[2], z[3])));
}

// A Share is this thread's columns: kVector of them in each tile, as far as they exist in the block's slice.
struct Share {
  int first; // first column, in the first tile
  int columns; // columns of the slice, from `first` on; negative where it has none

  // Returns whether all kVector columns of the tile exist.
  __device__ __forceinline__ bool whole(int tile) const {
    return columns >= tile * kTileColumns + kVector;
  }

  __device__ __forceinline__ int valid(int tile) const {
    return min(max(computed_anew(columns) - tile * kTileColumns, 0), kVector);
  }
};

// A cursor visits the rows of a cluster whose token is not ignored. Targets are read one row before they are used.
class RowCursor {
 public:
  __device__ RowCursor(const RowArgs& args, int first, int step)
      : args_(args), row_(first - step), step_(step), ahead_(target_of(first)) {}

  // Returns the next row, or one beyond the last; calls skipped(row) for the ignored rows before it.
  template <typename Skipped>
  __device__ __forceinline__ int next(const Skipped& skipped) {
    row_ += step_;
    while (ahead_ == kIgnore) {
      skipped(row_);
      row_ += step_;
      ahead_ = target_of(row_);
    }
    ahead_ = target_of(row_ + step_);
    return row_;
  }

 private:
  static constexpr int kIgnore = static_cast<int>(kIgnoreIndex);

  // Labels are smaller than 2^31, so the lower half of the little-endian 64-bit number is the label.
  __device__ __forceinline__ int target_of(int row) const {
    return args_.targets == nullptr || row >= args_.num_rows
        ? -1
        : reinterpret_cast<const int*>(args_.targets)[2 * static_cast<int64_t>(row)];
  }

  const RowArgs& args_;
  int row_;
  const int step_;
  int ahead_;
};

// A slot at a shared-memory address has two barriers: full_barrier counts the bytes of its copies, empty_barrier the
// workers' warps that have read them.
template <typename G>
__device__ __forceinline__ uint32_t full_barrier(uint32_t slot) {
  return slot + G::kSlotBytes;
}

template <typename G>
__device__ __forceinline__ uint32_t empty_barrier(uint32_t slot) {
  return full_barrier<G>(slot) + sizeof(uint64_t);
}

// One warp copies the block's slice of all rows of the cluster, tile by tile, each into the next slot of the ring as
// soon as the workers have released it.
template <typename G, typename Logit, bool kTeacher>
struct TileCopies {
  const RowArgs& args;
  uint32_t slots; // shared-memory address
  int first_column;
  int existing; // columns of the slice

  // One lane copies whole units of kCopyBytes, with those that hold the tile's first and last column.
  __device__ __forceinline__ void in_bulk(RowCursor cursor) const {
    for_tiles(cursor, [&](uint32_t to, uint32_t full, const Logit* student, const Logit* teacher, int columns) {
      const Units of_student = units(student, columns);
      const Units of_teacher = kTeacher ? units(teacher, columns) : Units{nullptr, 0};
      barrier_expect_at(full, of_student.bytes + of_teacher.bytes);
      if (columns > 0) {
        bulk_copy(to, of_student.first, of_student.bytes, full);
        if constexpr (kTeacher) {
          bulk_copy(to + G::kSideBytes, of_teacher.first, of_teacher.bytes, full);
        }
      }
    });
  }

  // All lanes copy rows that start at multiples of 4 bytes. A last column of 2 bytes is read with the 2 bytes after
  // it.
  __device__ __forceinline__ void by_words(RowCursor cursor, int lane) const {
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(Logit));
    constexpr int kTogether = 8; // copies of a side by a lane
    for_tiles(cursor, [&](uint32_t to, uint32_t full, const Logit* student, const Logit* teacher, int columns) {
      const int words = (columns + kPerWord - 1) / kPerWord;
#pragma unroll 1
      for (int first = lane; first < words; first += kTogether * kWarp) {
        copy_words<kTogether>(to, student, first, words);
        if constexpr (kTeacher) {
          copy_words<kTogether>(to + G::kSideBytes, teacher, first, words);
        }
      }
      barrier_arrive_after_copies_at(full);
    });
  }

 private:
  struct Units {
    const void* first;
    uint32_t bytes;
  };

  __device__ __forceinline__ static Units units(const Logit* from, int columns) {
    const auto bytes = static_cast<uint32_t>(columns) * static_cast<uint32_t>(sizeof(Logit));
    const auto before = G::kMayShift ? static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % kCopyBytes) : 0U;
    const uint32_t all = columns > 0 ? (before + bytes + kCopyBytes - 1) / kCopyBytes * kCopyBytes : 0U;
    return {reinterpret_cast<const char*>(from) - before, all};
  }

  // Calls copy(slot's address, its full barrier, the student's and the teacher's first logit, columns that exist).
  template <typename Copy>
  __device__ __forceinline__ void for_tiles(RowCursor& cursor, const Copy& copy) const {
    uint32_t slot = slots;
    uint32_t empty_phase = 1; // of a barrier that nobody has arrived at, the phase before the first one is complete
    const int rows = static_cast<int>(args.num_rows);
    for (int row = cursor.next([](int) {}); row < rows; row = cursor.next([](int) {})) {
      const Logit* student =
          static_cast<const Logit*>(args.student) + static_cast<int64_t>(row) * args.student_stride + first_column;
      const Logit* teacher =
          static_cast<const Logit*>(args.teacher) + static_cast<int64_t>(row) * args.teacher_stride + first_column;
#pragma unroll 1
      for (int tile = 0; tile < G::kTiles; ++tile) {
        const int columns = min(max(existing - tile * kTileColumns, 0), kTileColumns);
        barrier_wait_at(empty_barrier<G>(slot), empty_phase);
        copy(slot, full_barrier<G>(slot), student + tile * kTileColumns, teacher + tile * kTileColumns, columns);
        slot += G::kSlotStride;
        if (slot == slots + G::kRingBytes) {
          slot = slots;
          empty_phase ^= 1U;
        }
      }
    }
  }

  // Copies the words first, first + kWarp, ... of a side's tile, kCount of them as far as they exist.
  template <int kCount>
  __device__ __forceinline__ static void copy_words(uint32_t to, const Logit* from, int first, int words) {
    const char* bytes = reinterpret_cast<const char*>(from) + static_cast<int64_t>(first) * 4;
    to += static_cast<uint32_t>(first) * 4;
    if (first + (kCount - 1) * kWarp < words) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        word_copy(to + k * kWarp * 4, bytes + k * kWarp * 4);
      }
    } else {
      for (int k = 0; first + k * kWarp < words; ++k) {
        word_copy(to + static_cast<uint32_t>(k) * kWarp * 4, bytes + k * kWarp * 4);
      }
    }
  }
};

#endif

} // namespace distill::losses::cluster
