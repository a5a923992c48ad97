// A thread's columns of a row in the cluster row kernel: reading, summing, and writing their gradient.
#pragma once

#include "losses/rows/cuda/cluster/tile_loader.cuh"

namespace distill::losses::cluster {

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

  template <bool kGeneral>
  __device__ __forceinline__ void add(const float (&z)[kVector], const RowConstants<float>& c) {
    max = fmaxf(max, fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])));
    const float scaled = base * c.to_log2;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum += row_exp2(kGeneral ? (z[j] - base) * c.to_log2 : z[j] * c.to_log2 - scaled);
    }
    if (kGeneral && !c.unit_temperature) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        unit_sum += row_exp2((z[j] - base) * kLog2E<float>);
      }
    }
  }
};

// A thread's columns, row after row. Shared memory holds kSlots tiles of them as a ring.
template <typename G, typename Logit, bool kGeneral>
struct Columns {
  const RowArgs& args;
  const RowConstants<float>& c;
  const ClusterPlan& plan;
  const Share& share;
  uint32_t base; // shared-memory address of this thread's columns in slot 0
  int slot = 0; // of the row's first tile

  __device__ __forceinline__ bool exists(int tile) const {
    return !kGeneral || tile < plan.tiles;
  }

  __device__ __forceinline__ uint32_t place(int tile) const {
    const uint32_t first = base + static_cast<uint32_t>(slot) * G::kSlotBytes;
    return (tile < G::kSlots - slot ? first : first - G::kSlots * G::kSlotBytes) +
        static_cast<uint32_t>(tile) * G::kSlotBytes;
  }

  __device__ __forceinline__ void next_slots() {
    slot += G::kTiles;
    slot -= slot < G::kSlots ? 0 : G::kSlots;
  }

  // One side of a tile after bias and softcap; columns that do not exist are -inf.
  __device__ __forceinline__ void read(
      uint32_t address, int tile, const void* bias, float softcap, float (&z)[kVector]) const {
    read_vector(address, z, static_cast<const Logit*>(nullptr));
    if constexpr (kGeneral) {
      const int valid = share.valid(tile);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (j < valid) {
          z[j] += bias == nullptr ? 0.0F : load_as<float>(bias, share.first + tile * kTileColumns + j, args.bias_type);
          z[j] = softcapped(z[j], softcap);
        }
      }
    }
  }

  __device__ __forceinline__ void student(int tile, float (&z)[kVector]) const {
    read(place(tile), tile, args.student_bias, c.student_softcap, z);
  }

  __device__ __forceinline__ void teacher(int tile, float (&z)[kVector]) const {
    read(place(tile) + G::kSideBytes, tile, args.teacher_bias, c.teacher_softcap, z);
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

  // Relative to the warp's maximum.
  template <typename Side>
  __device__ __forceinline__ SidePartial part(OnlineSums run, const Side& side) const {
    SidePartial out;
    out.max = lanes_max(kAllLanes, run.max);
    if (out.max == -INFINITY) {
      out.sum = run.sum; // 0, or NaN where a logit is NaN
      return out;
    }
    if ((out.max - run.base) * fmaxf(c.to_log2, kLog2E<float>) > OnlineSums::kRoom) {
      run = {run.max, out.max, 0, 0};
#pragma unroll 1
      for (int i = 0; i < plan.tiles; ++i) {
        float z[kVector];
        side(i, z);
        run.template add<kGeneral>(z, c);
      }
    }
    // add() rounded the base times to_log2; this corrects it once for all columns.
    const float rounding = kGeneral ? 0.0F : fmaf(run.base, c.to_log2, -(run.base * c.to_log2));
    out.sum = run.sum * row_exp2((run.base - out.max) * c.to_log2 - rounding);
    out.unit_sum = kGeneral ? run.unit_sum * row_exp2((run.base - out.max) * kLog2E<float>) : 0.0F;
    return out;
  }

  // value(tile, j): the gradient of this thread's column j in a tile.
  template <typename Value>
  __device__ __forceinline__ void write_row(int row, const Value& value) const {
    if (args.gradient_type == ElementType::kBFloat16) {
      write_row_as<__nv_bfloat16>(row, value);
    } else {
      write_row_as<float>(row, value);
    }
  }

  __device__ __forceinline__ void write(int row, int tile, const float (&g)[kVector]) const {
    if (args.gradient_type == ElementType::kBFloat16) {
      write_as(gradient_of<__nv_bfloat16>(row), tile, g);
    } else {
      write_as(gradient_of<float>(row), tile, g);
    }
  }

  __device__ __forceinline__ void write_one(int row, int local, float g) const {
    const int64_t at = static_cast<int64_t>(row) * args.gradient_stride + share.first + local;
    store_as(args.gradient, at, args.gradient_type, g);
  }

 private:
  template <typename Gradient>
  __device__ __forceinline__ Gradient* gradient_of(int row) const {
    return static_cast<Gradient*>(args.gradient) + static_cast<int64_t>(row) * args.gradient_stride + share.first;
  }

  template <typename Gradient, typename Value>
  __device__ __forceinline__ void write_row_as(int row, const Value& value) const {
    Gradient* out = gradient_of<Gradient>(row);
#pragma unroll
    for (int i = 0; i < G::kTiles; ++i) {
      if (exists(i)) {
        const float g[kVector] = {value(i, 0), value(i, 1), value(i, 2), value(i, 3)};
        write_as(out, i, g);
      }
    }
  }

  template <typename Gradient>
  __device__ __forceinline__ void write_as(Gradient* out, int tile, const float (&g)[kVector]) const {
    Gradient* to = out + tile * kTileColumns;
    if (tile < share.full) {
      if constexpr (sizeof(Gradient) == 2) {
        *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]));
      } else {
        *reinterpret_cast<float4*>(to) = make_float4(g[0], g[1], g[2], g[3]);
      }
    } else if (tile == share.full && share.part > 0) {
      write_part(to, share.part, g[0], g[1], g[2]);
    }
  }

  template <typename Gradient>
  __device__ __forceinline__ static void write_part(Gradient* to, int valid, float g0, float g1, float g2) {
    to[0] = static_cast<Gradient>(g0);
    if (valid > 1) {
      to[1] = static_cast<Gradient>(g1);
    }
    if (valid > 2) {
      to[2] = static_cast<Gradient>(g2);
    }
  }
};

// The gradient of a column without the label's part. `saved`: q, or where kGeneral log2 q, from which the capped logit
// follows.
template <Divergence kDivergence, bool kGeneral>
__device__ __forceinline__ float gradient_of(
    float a, float saved, float mean, const SideStats<float>& student, const RowFactors<float>& f,
    const RowConstants<float>& c) {
  if constexpr (!kGeneral) {
    return unit_gradient<kDivergence>(a, saved, mean, f);
  } else {
    const float above = (saved + student.log2_sum) / c.to_log2; // logit - max
    const float q = row_exp2(saved);
    const float unit_lq = row_max(above * kLog2E<float> - student.unit_log2_sum, kLogFloor<float>);
    const float unit_q = c.unit_temperature ? q : row_exp2(unit_lq);
    const float slope = c.student_softcap > 0 ? softcap_slope(above + student.max, c.student_softcap) : 1.0F;
    return general_gradient<kDivergence>(a, q, unit_q, slope, mean, f);
  }
}

#endif

} // namespace distill::losses::cluster
