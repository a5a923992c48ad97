// A thread's columns of a row in the cluster row kernel: reading, summing, and writing their gradient.
#pragma once

#include "losses/rows/cuda/cluster/tiles.cuh"

namespace distill::losses::cluster {

// In place of the gradient's type where no gradient is asked for.
struct None {};

// Whether the base is subtracted from the logits before they are scaled: two sums with different scales need it.
template <Mode kMode>
inline constexpr bool kSubtractsFirst = kMode == Mode::kGeneral || kMode == Mode::kTempered;

// Whether log2 q is kept of a column, and not q.
template <Mode kMode>
inline constexpr bool kKeepsLog = kMode == Mode::kGeneral || kMode == Mode::kTempered;

// Whether log2(m / q) comes from its series where p and q are close (soft_terms). With the instruction instead, errors
// near the teacher are within twice those of a plain computation in fp32 for JSD at T = 1, and not at other
// temperatures.
template <Divergence kDivergence, Mode kMode>
inline constexpr bool kSeriesNearZero =
    kMode == Mode::kGeneral || kMode == Mode::kTempered || kDivergence != Divergence::kJsd;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// One side's sums of the online softmax in a thread, relative to the maximum of its warp's first tile. If a later logit
// is so far above that maximum that the sums may overflow, the warp sums its columns again relative to their maximum.
struct OnlineSums {
  static constexpr float kRoom = 80; // powers of two

  float max = -INFINITY;
  float base = 0;
  float sum = 0;
  float unit_sum = 0;

  __device__ __forceinline__ void begin(const float (&z)[kVector]) {
    base = fmaxf(lanes_max(kAllLanes, fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]))), -1e30F);
  }

  template <Mode kMode>
  __device__ __forceinline__ void add(const float (&z)[kVector], const RowConstants<float>& c) {
    max = fmaxf(max, fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])));
    const float scaled = base * c.to_log2;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum += row_exp2(kSubtractsFirst<kMode> ? (z[j] - base) * c.to_log2 : z[j] * c.to_log2 - scaled);
    }
    if (kMode == Mode::kTempered || (kMode == Mode::kGeneral && !c.unit_temperature)) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        unit_sum += row_exp2((z[j] - base) * kLog2E<float>);
      }
    }
  }
};

// A softcap in six instructions. From the errors of ex2.approx (2^-22) and rcp.approx (one unit in the last place), the
// absolute error is at most about 4e-7 times the cap.
__device__ __forceinline__ float fast_softcapped(float logit, float cap, float two_log2e_over_cap) {
  const float reciprocal = approximate_reciprocal(row_exp2(logit * two_log2e_over_cap) + 1.0F);
  return fmaf(-2.0F * cap, reciprocal, cap);
}

// A thread's columns, row after row. Shared memory holds kSlots tiles of them as a ring.
template <typename G, typename Logit, Mode kMode>
struct Columns {
  static constexpr bool kGeneral = kMode == Mode::kGeneral;
  static constexpr bool kAdjusts = kMode == Mode::kGeneral || kMode == Mode::kCapped;
  // fp32 logits are replaced in shared memory by what bias and softcap make of them, so that it is done once.
  static constexpr bool kReplaces = kAdjusts && sizeof(Logit) == 4;

  const RowArgs& args;
  const RowConstants<float>& c;
  const ClusterPlan& plan;
  const Share& share;
  SlotBarriers<G> barriers;
  uint32_t base; // shared-memory address of this thread's columns in slot 0
  int slot = 0; // of the row's first tile
  uint32_t phase = 0; // of the full barrier of that slot
  // How many elements behind the beginning of their tiles the columns begin, 4 bits each: the row's student and
  // teacher, and those of the next row. In one register, of which there are none to spare.
  uint32_t shifts = 0;

  __device__ __forceinline__ bool exists(int tile) const {
    return !kGeneral || tile < plan.tiles;
  }

  // The slot of a tile of the row that begins in slot `from`; tiles kTiles and later are the next row's.
  __device__ __forceinline__ int slot_from(int from, int tile) const {
    return from + tile - (tile < G::kSlots - from ? 0 : G::kSlots);
  }

  __device__ __forceinline__ uint32_t place_from(int from, int tile) const {
    return base + static_cast<uint32_t>(slot_from(from, tile)) * G::kSlotBytes;
  }

  __device__ __forceinline__ uint32_t place(int tile) const {
    return place_from(slot, tile);
  }

  // The row that next_slots() goes to.
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
    slot += G::kTiles;
    phase ^= slot < G::kSlots ? 0U : 1U;
    slot -= slot < G::kSlots ? 0 : G::kSlots;
  }

  // Waits for the copies of a tile, counted from the current row's first.
  __device__ __forceinline__ void wait(int tile) const {
    barrier_wait_at(barriers.full(slot_from(slot, tile)), tile < G::kSlots - slot ? phase : phase ^ 1U);
  }

  // The warp has read the tile of the row that begins in slot `from` for the last time.
  __device__ __forceinline__ void release(int from, int tile, int lane) const {
    warp_arrive_at(barriers.empty(slot_from(from, tile)), lane);
  }

  // Where a of a tile is stored that registers do not hold; q lies kStoredSideBytes behind it. `place`: the tile's.
  __device__ __forceinline__ uint32_t store(uint32_t place, int tile) const {
    if constexpr (G::kStoredInSlots) {
      return place;
    } else {
      const uint32_t thread = base + threadIdx.x * (kVector * sizeof(float) - G::kVectorBytes);
      return thread + G::kStoreOffset + static_cast<uint32_t>(tile - G::kRegisterTiles) * 2 * G::kStoredSideBytes;
    }
  }

  // Both sides of a tile after bias and softcap; columns that do not exist are -inf. The first read of a row;
  // kNext: not of the current one, but of the next.
  template <bool kTeacher, bool kNext>
  __device__ __forceinline__ void first_read(
      uint32_t place, int tile, float (&student)[kVector], float (&teacher)[kVector]) const {
    first_read(place, tile, kNext ? 8 : 0, args.student_bias, c.student_softcap, student);
    if constexpr (kTeacher) {
      first_read(place + G::kSideBytes, tile, kNext ? 12 : 4, args.teacher_bias, c.teacher_softcap, teacher);
    }
  }

  // The same in later reads.
  __device__ __forceinline__ void student(int tile, float (&z)[kVector]) const {
    read(place(tile), tile, 0, args.student_bias, c.student_softcap, z);
  }

  __device__ __forceinline__ void teacher(int tile, float (&z)[kVector]) const {
    read(place(tile) + G::kSideBytes, tile, 4, args.teacher_bias, c.teacher_softcap, z);
  }

  // The first of this thread's columns with `value`; side: student or teacher. All other threads wait for the few that
  // search, so the tiles are read at once where registers allow it.
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

  // The warp's part of a side's normaliser.
  template <typename Side>
  __device__ __forceinline__ SidePartial part(OnlineSums run, const Side& side) const {
    const float max = lanes_max(kAllLanes, run.max);
    if ((max - run.base) * fmaxf(c.to_log2, kLog2E<float>) > OnlineSums::kRoom) {
      run = {run.max, max, 0, 0};
#pragma unroll 1
      for (int i = 0; i < plan.tiles; ++i) {
        float z[kVector];
        side(i, z);
        run.template add<kMode>(z, c);
      }
    }
    return {max, run.sum, run.unit_sum, run.base};
  }

  template <typename Gradient>
  __device__ __forceinline__ Gradient* gradient_at(int row) const {
    return static_cast<Gradient*>(args.gradient) + static_cast<int64_t>(row) * args.gradient_stride + share.first;
  }

  // `out`: gradient_at() of the row.
  template <typename Gradient>
  __device__ __forceinline__ void write_as(Gradient* out, int tile, const float (&g)[kVector]) const {
    Gradient* to = out + tile * kTileColumns;
    if (tile < share.full && plan.vector_stores) {
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

 private:
  __device__ __forceinline__ static uint32_t shift_of(const void* logits, int64_t stride, int row) {
    constexpr uint32_t kUnit = kCopyBytes / sizeof(Logit);
    const auto first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(logits) / sizeof(Logit));
    return (first + static_cast<uint32_t>(row) * static_cast<uint32_t>(stride)) % kUnit;
  }

  // `side`: the bits of `shifts`.
  __device__ __forceinline__ void read_logits(uint32_t address, unsigned side, float (&z)[kVector]) const {
    if constexpr (G::kMayShift) {
      read_shifted(address, shifts >> side & 7U, z);
    } else {
      read_vector(address, z, static_cast<const Logit*>(nullptr));
    }
  }

  // -inf for those of a tile's columns that do not exist.
  __device__ __forceinline__ void mask(int tile, float (&z)[kVector]) const {
    const int valid = share.valid(tile);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      z[j] = j < valid ? z[j] : -INFINITY;
    }
  }

  __device__ __forceinline__ void read(
      uint32_t address, int tile, unsigned side, const void* bias, float softcap, float (&z)[kVector]) const {
    read_logits(address, side, z);
    if constexpr (G::kMayShift) { // not replaced in shared memory, whose words hold neighbours' columns, too
      if (tile >= share.full) {
        mask(tile, z);
      }
    }
    if constexpr (kAdjusts && !kReplaces) {
      if (bias != nullptr || softcap > 0) {
        adjust(tile, bias, softcap, z);
      }
    }
  }

  __device__ __forceinline__ void first_read(
      uint32_t address, int tile, unsigned side, const void* bias, float softcap, float (&z)[kVector]) const {
    read_logits(address, side, z);
    if (tile >= share.full) {
      mask(tile, z);
      if constexpr (!G::kMayShift) { // for later reads
        write_vector(address, z, static_cast<const Logit*>(nullptr));
      }
    }
    if (kAdjusts && (bias != nullptr || softcap > 0)) {
      adjust(tile, bias, softcap, z);
      if constexpr (kReplaces) {
        write_vector(address, z, static_cast<const Logit*>(nullptr));
      }
    }
  }

  __device__ __forceinline__ void adjust(int tile, const void* bias, float softcap, float (&z)[kVector]) const {
    const int valid = share.valid(tile);
    const float scale = 2.0F * kLog2E<float> / softcap;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if constexpr (kGeneral) {
        if (j < valid) {
          z[j] += bias == nullptr ? 0.0F : load_as<float>(bias, share.first + tile * kTileColumns + j, args.bias_type);
          z[j] = softcapped(z[j], softcap);
        }
      } else {
        z[j] = j < valid ? fast_softcapped(z[j], softcap, scale) : z[j];
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

// What is kept of a column's q for its gradient: q, with the softcap's slope; or log2 q, from which all else follows.
// The logit is capped.
template <Mode kMode>
__device__ __forceinline__ float kept_q(const ColumnResult<float>& r, float logit, float square_of_inverse_cap) {
  if constexpr (kKeepsLog<kMode>) {
    return r.lq;
  } else if constexpr (kMode == Mode::kCapped) {
    return r.q * fmaf(-logit * square_of_inverse_cap, logit, 1.0F);
  } else {
    return r.q;
  }
}

// The gradient of a column without the label's part, where it needs the mean slope of the row. `kept`: of kept_q.
template <Divergence kDivergence, Mode kMode>
__device__ __forceinline__ float gradient_of(
    float a, float kept, float mean, const SideStats<float>& student, const RowFactors<float>& f,
    const RowConstants<float>& c) {
  if constexpr (!kKeepsLog<kMode>) {
    return unit_gradient<kDivergence>(a, kept, mean, f);
  } else if constexpr (kMode == Mode::kTempered) {
    // (kept + log2_sum) / to_log2 is logit - max.
    const float scale = kLog2E<float> / c.to_log2;
    const float unit_q = row_exp2(fmaf(kept, scale, student.log2_sum * scale - student.unit_log2_sum));
    return general_gradient<kDivergence>(a, row_exp2(kept), unit_q, 1.0F, mean, f);
  } else {
    const float above = (kept + student.log2_sum) / c.to_log2; // logit - max
    const float q = row_exp2(kept);
    const float unit_lq = row_max(above * kLog2E<float> - student.unit_log2_sum, kLogFloor<float>);
    const float unit_q = c.unit_temperature ? q : row_exp2(unit_lq);
    const float slope = c.student_softcap > 0 ? softcap_slope(above + student.max, c.student_softcap) : 1.0F;
    return general_gradient<kDivergence>(a, q, unit_q, slope, mean, f);
  }
}

#endif

} // namespace distill::losses::cluster
