// This file reads, sums and writes the gradient of a thread's columns of a row in the cluster row kernel.
#pragma once

#include "losses/rows/cuda/cluster/online_sums.cuh"
#include "losses/rows/cuda/cluster/softcap.cuh"

namespace distill::losses::cluster {

// This type takes the place of the gradient's where no gradient is asked for.
struct None {};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A Columns has a thread's columns, row after row. Shared memory holds kSlots tiles of them as a ring of slots, which
// are given by their bytes from its beginning.
template <typename G, typename Logit, Mode kMode>
struct Columns {
  static constexpr bool kGeneral = kMode == Mode::kGeneral;
  static constexpr bool kAdjusts = kCaps<kMode>;
  // In shared memory, bias and softcap are applied to fp32 logits in place, so that it is done once.
  static constexpr bool kReplaces = kAdjusts && sizeof(Logit) == 4;
  // The first tiles of every slice are whole where the kernel is made for the number of tiles (cluster_plan); only the
  // last two have columns that do not exist.
  static constexpr int kWholeTiles = kGeneral || G::kTiles == kMinTiles ? 0
      : G::kTiles == kLongTiles                                         ? kMaxTiles - 1
                                                                        : G::kTiles - 2;

  const RowArgs& args;
  const RowConstants<float>& c;
  const ClusterPlan& plan;
  const Share& share;
  int tiles_of_warp; // the tiles in which a thread of the warp has columns; the same in all of its threads
  uint32_t ring; // shared-memory address
  uint32_t mine; // the address of this thread's columns in the first slot
  uint32_t slot = 0; // the slot of the row's first tile
  uint32_t phase = 0; // the phase of the full barrier of that slot
  // The columns begin this many elements behind the beginning of their tiles, 4 bits each: the row's student and
  // teacher, and those of the next row. One register has them all, since there are none to spare.
  uint32_t shifts = 0;

  // Returns whether threads of this warp may have columns in the tile.
  __device__ __forceinline__ bool exists(int tile) const {
    if constexpr (kGeneral) {
      return tile < plan.tiles;
    } else {
      return kWholeTiles == 0 || tile < kWholeTiles || tile < tiles_of_warp;
    }
  }

  // Returns whether all kVector columns of the tile exist.
  __device__ __forceinline__ bool whole(int tile) const {
    return tile < kWholeTiles || share.whole(tile);
  }

  // Returns whether a tile of the row that begins in slot `from` lies behind the ring's end, and so at its beginning.
  __device__ __forceinline__ bool wraps(uint32_t from, int tile) const {
    return from + static_cast<uint32_t>(tile) * G::kSlotStride > G::kRingBytes - 1U;
  }

  // Returns the slot of that tile; tiles kTiles and later are the next row's.
  __device__ __forceinline__ uint32_t slot_from(uint32_t from, int tile) const {
    return from + static_cast<uint32_t>(tile) * G::kSlotStride - (wraps(from, tile) ? G::kRingBytes : 0U);
  }

  __device__ __forceinline__ uint32_t place_from(uint32_t from, int tile) const {
    return slot_from(from, tile) + mine;
  }

  __device__ __forceinline__ uint32_t place(int tile) const {
    return place_from(slot, tile);
  }

  // Sets the row that next_slots() goes to.
  __device__ __forceinline__ void next_row(int row) {
    if constexpr (G::kMayShift) {
      const uint32_t student = shift_of(args.student, args.student_stride, row);
      const uint32_t teacher = shift_of(args.teacher, args.teacher_stride, row);
      shifts = (shifts & 0xffU) | student << 8U | teacher << 12U;
    }
  }

  // The first row's shifts, given to next_row(), become those of the current row.
  __device__ __forceinline__ void begin() {
    shifts >>= 8U;
  }

  __device__ __forceinline__ void next_slots() {
    shifts >>= 8U;
    phase ^= wraps(slot, G::kTiles) ? 1U : 0U;
    slot = slot_from(slot, G::kTiles);
  }

  // Waits for the copies of a tile, counted from the current row's first.
  __device__ __forceinline__ void wait(int tile) const {
    barrier_wait_at(full_barrier<G>(ring + slot_from(slot, tile)), phase ^ (wraps(slot, tile) ? 1U : 0U));
  }

  // Tells that the warp has read the tile of the row that begins in slot `from` for the last time.
  __device__ __forceinline__ void release(uint32_t from, int tile, int lane) const {
    warp_arrive_at(empty_barrier<G>(ring + slot_from(from, tile)), lane);
  }

  // Returns where a is stored for a tile that is not in registers; q lies kStoredSideBytes behind. `place`: the tile's.
  __device__ __forceinline__ uint32_t store(uint32_t place, int tile) const {
    if constexpr (G::kStoredInSlots) {
      return place;
    } else {
      const uint32_t thread = ring + (threadIdx.x - G::kHelpers) * static_cast<uint32_t>(kVector * sizeof(float));
      return thread + G::kStoreOffset + static_cast<uint32_t>(tile - G::kRegisterTiles) * 2 * G::kStoredSideBytes;
    }
  }

  // Reads both sides of a tile for the first time: after bias and softcap, or, with kKeepsExponentials, as they are.
  // Columns that do not exist are -inf. kNext: the tile is not of the current row, but of the next.
  template <bool kTeacher, bool kNext>
  __device__ __forceinline__ void first_read(
      uint32_t place, int tile, float (&student)[kVector], float (&teacher)[kVector]) const {
    first_read(place, tile, student_side(kNext), student);
    if constexpr (kTeacher) {
      first_read(place + G::kSideBytes, tile, teacher_side(kNext), teacher);
    }
  }

  // Reads the same from global memory.
  template <bool kTeacher>
  __device__ __forceinline__ void from_memory(
      int row, int tile, float (&student)[kVector], float (&teacher)[kVector]) const {
    from_memory(args.student, args.student_stride, row, tile, student_side(false), student);
    if constexpr (kTeacher) {
      from_memory(args.teacher, args.teacher_stride, row, tile, teacher_side(false), teacher);
    }
  }

  // Reads the same later on.
  __device__ __forceinline__ void student(int tile, float (&z)[kVector]) const {
    read(place(tile), tile, student_side(false), z);
  }

  __device__ __forceinline__ void teacher(int tile, float (&z)[kVector]) const {
    read(place(tile) + G::kSideBytes, tile, teacher_side(false), z);
  }

  // Returns the first of this thread's columns with `value`; side: student or teacher. All other threads wait for the
  // few that search, so the tiles are read at once where registers allow it.
  template <typename Side>
  __device__ __forceinline__ int first_of(float value, const Side& side) const {
    int best = INT32_MAX;
#pragma unroll(kGeneral ? 1 : G::kTiles)
    for (int i = G::kTiles - 1; i >= 0; --i) {
      if (exists(i)) {
        float z[kVector];
        side(i, z);
#pragma unroll
        for (int j = kVector - 1; j >= 0; --j) {
          best = z[j] == value ? share.first + i * kTileColumns + j : best;
        }
      }
    }
    return best;
  }

  // Returns the warp's part of a side's normaliser.
  template <typename Side>
  __device__ __forceinline__ SidePartial part(OnlineSums run, const Side& side) const {
    const float max = lanes_max(run.max);
    if ((max - run.base) * fmaxf(c.to_log2, kLog2E<float>) > OnlineSums::kRoom) {
      run.begin(max, c);
#pragma unroll 1
      for (int i = 0; i < plan.tiles; ++i) {
        if (exists(i)) {
          float z[kVector];
          side(i, z);
          run.template add<kMode>(z, c);
        }
      }
    }
    return {max > -kLargestLogit ? max : -INFINITY, run.sum, run.unit_sum, run.base};
  }

  template <typename Gradient>
  __device__ __forceinline__ Gradient* gradient_at(int row) const {
    return static_cast<Gradient*>(args.gradient) + static_cast<int64_t>(row) * args.gradient_stride + share.first;
  }

  // Writes the gradient. `out`: gradient_at() of the row.
  template <typename Gradient>
  __device__ __forceinline__ void write_as(Gradient* out, int tile, const float (&g)[kVector]) const {
    Gradient* to = out + tile * kTileColumns;
    if (whole(tile) && plan.vector_stores) {
      if constexpr (sizeof(Gradient) == 2) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]));
      } else {
        *reinterpret_cast<float4*>(to) = make_float4(g[0], g[1], g[2], g[3]);
      }
    } else {
      write_part(to, share.valid(tile), g);
    }
  }

  __device__ __forceinline__ void write(int row, int tile, const float (&g)[kVector]) const {
    if (args.gradient_type == ElementType::kBFloat16) {
      write_as(gradient_at<__nv_bfloat16>(row), tile, g);
    } else {
      write_as(gradient_at<float>(row), tile, g);
    }
  }

  __device__ __forceinline__ void write_one(int row, int local, float g) const {
    const int64_t at = static_cast<int64_t>(row) * args.gradient_stride + share.first + local;
    store_as(args.gradient, at, args.gradient_type, g);
  }

  // Puts -inf in the place of those of a tile's columns that do not exist.
  __device__ __forceinline__ void mask(int tile, float (&z)[kVector]) const {
    const int valid = share.valid(tile);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      z[j] = j < valid ? z[j] : -INFINITY;
    }
  }

 private:
  __device__ __forceinline__ static uint32_t shift_of(const void* logits, int64_t stride, int row) {
    constexpr uint32_t kUnit = kCopyBytes / sizeof(Logit);
    const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(logits) / sizeof(Logit));
    return (first + static_cast<uint32_t>(row) * static_cast<uint32_t>(stride)) % kUnit;
  }

  // A side's logits are changed by these; they are constants of the launch, which take no registers.
  struct Adjustment {
    unsigned shift; // the bits of `shifts` that are this side's
    const void* bias;
    Softcap softcap;
  };

  __device__ __forceinline__ Adjustment student_side(bool next) const {
    return {next ? 8U : 0U, args.student_bias, student_softcap(c)};
  }

  __device__ __forceinline__ Adjustment teacher_side(bool next) const {
    return {next ? 12U : 4U, args.teacher_bias, teacher_softcap(c)};
  }

  __device__ __forceinline__ void read_logits(uint32_t address, const Adjustment& side, float (&z)[kVector]) const {
    if constexpr (G::kMayShift) {
      read_shifted(address, shifts >> side.shift & 7U, z);
    } else {
      read_vector(address, z, static_cast<const Logit*>(nullptr));
    }
  }

  __device__ __forceinline__ void from_memory(
      const void* logits, int64_t stride, int row, int tile, const Adjustment& side, float (&z)[kVector]) const {
    const auto* from = static_cast<const Logit*>(logits) + row * stride + share.first + tile * kTileColumns;
    const int valid = share.valid(tile);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      z[j] = j < valid ? static_cast<float>(from[j]) : -INFINITY;
    }
    if constexpr (kAdjusts && !kKeepsExponentials<kMode>) {
      adjust(tile, side, z);
    }
    mask(tile, z);
  }

  __device__ __forceinline__ void read(uint32_t address, int tile, const Adjustment& side, float (&z)[kVector]) const {
    read_logits(address, side, z);
    if constexpr (G::kMayShift) { // not replaced in shared memory, whose words hold neighbours' columns, too
      if (!whole(tile)) {
        mask(tile, z);
      }
    }
    if constexpr (kAdjusts && !kReplaces) {
      if (adjust(tile, side, z) && !whole(tile)) {
        mask(tile, z);
      }
    }
  }

  __device__ __forceinline__ void first_read(
      uint32_t address, int tile, const Adjustment& side, float (&z)[kVector]) const {
    read_logits(address, side, z);
    const bool partial = !whole(tile);
    constexpr bool kMasksLogits = kReplaces || kKeepsExponentials<kMode>;
    if (kMasksLogits && partial) {
      mask(tile, z); // the memory behind the last column must not choose how a neighbour is capped
    }
    if constexpr (kKeepsExponentials<kMode>) {
      return;
    } else if constexpr (kReplaces) {
      const bool adjusted = adjust(tile, side, z);
      if (partial) {
        mask(tile, z);
      }
      if (adjusted || partial) {
        write_vector(address, z, static_cast<const Logit*>(nullptr));
      }
    } else {
      if (partial) {
        mask(tile, z);
        if constexpr (!G::kMayShift) { // for later reads
          write_vector(address, z, static_cast<const Logit*>(nullptr));
        }
      }
      if constexpr (kAdjusts) {
        if (adjust(tile, side, z) && partial) {
          mask(tile, z);
        }
      }
    }
  }

  // Applies bias and softcap; returns whether there is one. Columns that do not exist may become anything: mask()
  // follows, which costs the others less than a comparison for each column here.
  __device__ __forceinline__ bool adjust(int tile, const Adjustment& side, float (&z)[kVector]) const {
    if constexpr (kGeneral) {
      if (side.bias != nullptr) {
        adjust_with_bias(tile, side, z);
        return true;
      }
    }
    if (side.softcap.cap > 0) {
      side.softcap.apply(z);
    }
    return side.softcap.cap > 0;
  }

  __device__ __forceinline__ void adjust_with_bias(int tile, const Adjustment& side, float (&z)[kVector]) const {
    const int valid = share.valid(tile);
    const int first = computed_anew(share.first) + tile * kTileColumns;
    float bias[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      bias[j] = j < valid ? load_as<float>(side.bias, first + j, args.bias_type) : 0.0F;
      z[j] += bias[j];
    }
    if (side.softcap.cap > 0) {
      float capped[kVector] = {z[0], z[1], z[2], z[3]};
      side.softcap.apply(capped);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        z[j] = excludes(bias[j]) ? z[j] : capped[j];
      }
    }
  }

  template <typename Gradient>
  __device__ __forceinline__ static void write_part(Gradient* to, int valid, const float (&g)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < valid) {
        to[j] = static_cast<Gradient>(g[j]);
      }
    }
  }
};

#endif

} // namespace distill::losses::cluster
