// A row on the blocks of a cluster: each block streams its slice of the row into shared memory by bulk copies, ahead of
// time, and keeps it on the chip (registers first, shared memory beyond) until the gradient is written. Two exchanges
// through distributed shared memory a row: the normalisers, and sum q a with the rest of the sums.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "losses/rows_cluster_plan.h"
#include "losses/rows_device.cuh"

namespace distill::losses {

constexpr int kVector = 4; // columns of a thread in a tile
constexpr int kRegisterVectors = 8; // tiles whose logits stay in registers
constexpr int kMaxStages = 32;

namespace cluster_detail {

namespace cg = cooperative_groups;

struct StatPartial {
  SideSums<float> student;
  SideSums<float> teacher;
};

struct SumPartial {
  RowSums<float> sums;
  int student_best;
  int teacher_best;
};

constexpr bool has_teacher(RowMode mode) {
  return mode != RowMode::kHard && mode != RowMode::kGeneralHard;
}

constexpr bool is_general(RowMode mode) {
  return mode == RowMode::kGeneral || mode == RowMode::kGeneralHard;
}

constexpr Divergence divergence_of(RowMode mode) {
  return mode == RowMode::kJsd      ? Divergence::kJsd
      : mode == RowMode::kForwardKl ? Divergence::kForwardKl
      : mode == RowMode::kReverseKl ? Divergence::kReverseKl
                                    : Divergence::kNone;
}

constexpr int tile_bytes(int threads, int logit_bytes) {
  return threads * kVector * logit_bytes;
}

constexpr int shared_bytes(int threads, int logit_bytes, int sides, int cluster_size, int stages) {
  const int partials = cluster_size * (threads / kWarp) * static_cast<int>(sizeof(StatPartial) + sizeof(SumPartial));
  return stages * sides * tile_bytes(threads, logit_bytes) + kMaxStages * static_cast<int>(sizeof(uint64_t)) + partials;
}

// Shared memory that a block may take when 512 / threads blocks share an SM: 227 KiB in all, 1 KiB reserved for each.
constexpr int available_shared(int threads) {
  return threads == 512 ? 227 * 1024 : 113 * 1024;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
  }
}

// Source, destination and bytes are multiples of 16.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The tiles of this block's slice of every row it works on, in order, through a ring of stages. One thread issues.
template <typename Logit, int kThreads, bool kTeacher>
struct Ring {
  static constexpr int kTile = kThreads * kVector;
  static constexpr int kSideBytes = kTile * static_cast<int>(sizeof(Logit));
  static constexpr int kStageBytes = kSideBytes * (kTeacher ? 2 : 1);

  unsigned char* stages;
  uint64_t* full; // of each stage: its bytes have arrived
  const RowArgs& args;
  const ClusterPlan& plan;
  int64_t first_column;
  int columns; // of this block's slice that exist
  int64_t row_step;
  // The issuing thread's state.
  int64_t row;
  int tile = 0;
  int issue_stage = 0;
  int issued = 0;

  __device__ const unsigned char* side(int stage, int which) const {
    return stages + static_cast<size_t>(stage) * kStageBytes + which * kSideBytes;
  }

  __device__ void skip_ignored() {
    while (row < args.num_rows && args.targets != nullptr && args.targets[row] == kIgnoreIndex) {
      row += row_step;
    }
  }

  // Issues all that fit when the first `freed` tiles have been read for the last time.
  __device__ void issue(int freed) {
    for (; issued < freed + plan.stages && row < args.num_rows; ++issued) {
      const int count = min(max(columns - tile * kTile, 0), kTile);
      const uint32_t bytes = (count * static_cast<uint32_t>(sizeof(Logit)) + 15U) / 16U * 16U;
      uint64_t* barrier = full + issue_stage;
      barrier_expect(barrier, bytes * (kTeacher ? 2U : 1U));
      if (bytes > 0) {
        const int64_t column = first_column + tile * kTile;
        unsigned char* to = stages + static_cast<size_t>(issue_stage) * kStageBytes;
        bulk_copy(to, static_cast<const Logit*>(args.student) + row * args.student_stride + column, bytes, barrier);
        if constexpr (kTeacher) {
          bulk_copy(
              to + kSideBytes, static_cast<const Logit*>(args.teacher) + row * args.teacher_stride + column, bytes,
              barrier);
        }
      }
      issue_stage = issue_stage + 1 == plan.stages ? 0 : issue_stage + 1;
      if (++tile == plan.vectors) {
        tile = 0;
        row += row_step;
        skip_ignored();
      }
    }
  }
};

// A position in the ring: the stage and how often the ring has wrapped.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

// Four logits of a thread from a tile, with bias and softcap; columns from `valid` on are -inf.
__device__ __forceinline__ void load_vector(const unsigned char* tile, float (&z)[kVector], const float*) {
  const float4 v = reinterpret_cast<const float4*>(tile)[threadIdx.x];
  z[0] = v.x;
  z[1] = v.y;
  z[2] = v.z;
  z[3] = v.w;
}

__device__ __forceinline__ void load_vector(const unsigned char* tile, float (&z)[kVector], const __nv_bfloat16*) {
  const uint2 v = reinterpret_cast<const uint2*>(tile)[threadIdx.x];
  z[0] = __uint_as_float(v.x << 16U);
  z[1] = __uint_as_float(v.x & 0xffff0000U);
  z[2] = __uint_as_float(v.y << 16U);
  z[3] = __uint_as_float(v.y & 0xffff0000U);
}

template <typename Logit, bool kGeneral>
__device__ __forceinline__ void load_logits(
    const unsigned char* tile, int64_t column, int valid, const void* bias, ElementType bias_type, float softcap,
    float (&z)[kVector]) {
  load_vector(tile, z, static_cast<const Logit*>(nullptr));
  if (bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      z[j] += j < valid ? load_as<float>(bias, column + j, bias_type) : 0.0F;
    }
  }
  if constexpr (kGeneral) {
    if (softcap > 0) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        z[j] = softcapped(z[j], softcap);
      }
    }
  }
  if (valid < kVector) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      z[j] = j < valid ? z[j] : -INFINITY;
    }
  }
}

template <bool kGeneral>
__device__ __forceinline__ void add_exponentials(
    const float (&z)[kVector], float base, SideSums<float>& sums, const RowConstants<float>& c) {
  const float scaled = base * c.to_log2;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sums.sum += row_exp2(kGeneral ? (z[j] - base) * c.to_log2 : z[j] * c.to_log2 - scaled);
    if (kGeneral && !c.unit_temperature) {
      sums.unit_sum += row_exp2((z[j] - base) * kLog2E<float>);
    }
  }
}

__device__ __forceinline__ float max_of(const float (&z)[kVector], float max) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    max = fmaxf(max, z[j]);
  }
  return max;
}

__device__ __forceinline__ int first_of(const float (&z)[kVector], float value, int column, int best) {
#pragma unroll
  for (int j = kVector - 1; j >= 0; --j) {
    best = z[j] == value ? min(best, column + j) : best;
  }
  return best;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// `column` is a multiple of 4, so whole vectors are aligned.
__device__ __forceinline__ void store_gradient(
    const RowArgs& args, int64_t row, int64_t column, int valid, const float (&g)[kVector]) {
  const int64_t at = row * args.gradient_stride + column;
  if (valid < kVector) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < valid) {
        store_as(args.gradient, at + j, args.gradient_type, g[j]);
      }
    }
  } else if (args.gradient_type == ElementType::kBFloat16) {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(args.gradient) + at) =
        make_uint2(pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3]));
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(args.gradient) + at) = make_float4(g[0], g[1], g[2], g[3]);
  }
}

template <RowMode kMode>
__device__ __forceinline__ ColumnResult<float> column_of(
    float zs, float zt, const SideStats<float>& student, const SideStats<float>& teacher, const RowConstants<float>& c,
    RowSums<float>& sums) {
  if constexpr (is_general(kMode)) {
    return any_column<has_teacher(kMode)>(zs, zt, student, teacher, c, sums);
  } else if constexpr (!has_teacher(kMode)) {
    return column<false>(zs, student, c, sums);
  } else {
    return column<divergence_of(kMode), false>(zs, zt, student, teacher, c, sums);
  }
}

// The partials of all warps of the cluster, merged in one fixed order: the same bits in every thread of every block.
template <int kThreads>
__device__ __forceinline__ StatPartial merge_stats(const StatPartial* slots, int count, const RowConstants<float>& c) {
  StatPartial all;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < count; e += kWarp) {
    all.student = merge(all.student, slots[e].student, c.to_log2);
    all.teacher = merge(all.teacher, slots[e].teacher, c.to_log2);
  }
  all.student = warp_merge(all.student, c.to_log2, c.unit_temperature);
  all.teacher = warp_merge(all.teacher, c.to_log2, c.unit_temperature);
  return all;
}

__device__ __forceinline__ SumPartial merge_sums(const SumPartial* slots, int count) {
  SumPartial all{.sums = {}, .student_best = INT32_MAX, .teacher_best = INT32_MAX};
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < count; e += kWarp) {
    all.sums = merge(all.sums, slots[e].sums);
    all.student_best = min(all.student_best, slots[e].student_best);
    all.teacher_best = min(all.teacher_best, slots[e].teacher_best);
  }
  return {warp_merge(all.sums), warp_min(all.student_best), warp_min(all.teacher_best)};
}

template <bool kGeneral>
__device__ __forceinline__ float merge_mean(const SumPartial* slots, int count, const RowConstants<float>& c) {
  RowSums<float> sums;
  for (int e = static_cast<int>(threadIdx.x) % kWarp; e < count; e += kWarp) {
    sums.q_a += slots[e].sums.q_a;
    sums.q += kGeneral ? slots[e].sums.q : 0.0F;
  }
  sums.q_a = warp_sum(sums.q_a);
  sums.q = kGeneral ? warp_sum(sums.q) : 0.0F;
  return mean_q_a(kGeneral ? c.divergence : Divergence::kNone, sums);
}

#endif // compute capability 9.0

template <int kThreads, typename Logit, RowMode kMode>
__global__ __launch_bounds__(kThreads, 512 / kThreads) void rows_cluster(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<float> c,
    const __grid_constant__ ClusterPlan plan) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr bool kTeacher = has_teacher(kMode);
  constexpr bool kGeneral = is_general(kMode);
  constexpr Divergence kDivergence = divergence_of(kMode);
  constexpr int kWarps = kThreads / kWarp;
  using TileRing = Ring<Logit, kThreads, kTeacher>;
  extern __shared__ __align__(128) unsigned char shared[];
  const cg::cluster_group cluster = cg::this_cluster();
  const int size = static_cast<int>(cluster.num_blocks());
  const int rank = static_cast<int>(cluster.block_rank());
  const int tid = static_cast<int>(threadIdx.x);
  const int warp = tid / kWarp;
  const int lane = tid % kWarp;
  const int partials = size * kWarps;
  const int vectors = plan.vectors;

  unsigned char* cursor = shared + static_cast<size_t>(plan.stages) * TileRing::kStageBytes;
  auto* full = reinterpret_cast<uint64_t*>(cursor);
  auto* stat_slots = reinterpret_cast<StatPartial*>(cursor + kMaxStages * sizeof(uint64_t));
  auto* sum_slots = reinterpret_cast<SumPartial*>(stat_slots + partials);

  const int64_t row_step = gridDim.x / size;
  const int64_t first_row = blockIdx.x / size;
  const int64_t first_column = static_cast<int64_t>(rank) * plan.slice;
  const int columns =
      static_cast<int>(min(max(args.vocab - first_column, int64_t{0}), static_cast<int64_t>(plan.slice)));
  TileRing ring{shared, full, args, plan, first_column, columns, row_step, first_row};
  if (tid == 0) {
    for (int s = 0; s < plan.stages; ++s) {
      barrier_init(full + s);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    ring.skip_ignored();
    ring.issue(0);
  }
  cluster.sync(); // the barriers exist, and every block of the cluster runs, before anybody writes to another block

  RingPosition at;
  int consumed = 0;
  int64_t target = args.targets != nullptr && first_row < args.num_rows ? args.targets[first_row] : 0;
  for (int64_t row = first_row; row < args.num_rows; row += row_step) {
    const int64_t label = target;
    if (args.targets != nullptr && row + row_step < args.num_rows) {
      target = args.targets[row + row_step]; // ahead of its use
    }
    float* out = static_cast<float*>(args.rows) + row;
    if (args.targets != nullptr && label == kIgnoreIndex) {
      if (rank == 0 && tid == 0) {
        zero_row(out, args.rows_stride);
      }
      const float zeros[kVector] = {};
      for (int i = 0; i < vectors && args.gradient != nullptr; ++i) {
        const int local = (i * kThreads + tid) * kVector;
        store_gradient(args, row, first_column + local, columns - local, zeros);
      }
      continue;
    }
    const float weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
    const bool finishes = rank == 0 && warp == kWarps - 1;
    // Read before any gradient is written: the two may share memory.
    float label_logit = 0;
    if (finishes && args.targets != nullptr) {
      const void* start = row_start(args.student, row, args.student_stride, args.logits_type);
      label_logit = logit_at(start, label, args.logits_type, args.student_bias, args.bias_type, c.student_softcap);
    }

    // 1. Arrival: registers take the first tiles, the rest stays in its stages.
    float s[kRegisterVectors][kVector];
    float t[kTeacher ? kRegisterVectors : 1][kVector];
    StatPartial mine;
    const auto load_student = [&](int stage, int i, float(&z)[kVector]) {
      const int local = (i * kThreads + tid) * kVector;
      load_logits<Logit, kGeneral>(
          ring.side(stage, 0), first_column + local, columns - local, args.student_bias, args.bias_type,
          c.student_softcap, z);
    };
    const auto load_teacher = [&](int stage, int i, float(&z)[kVector]) {
      const int local = (i * kThreads + tid) * kVector;
      load_logits<Logit, kGeneral>(
          ring.side(stage, 1), first_column + local, columns - local, args.teacher_bias, args.bias_type,
          c.teacher_softcap, z);
    };
#pragma unroll
    for (int i = 0; i < kRegisterVectors; ++i) {
      if (i < vectors) {
        barrier_wait(full + at.stage, at.parity);
        load_student(at.stage, i, s[i]);
        mine.student.max = max_of(s[i], mine.student.max);
        if constexpr (kTeacher) {
          load_teacher(at.stage, i, t[i]);
          mine.teacher.max = max_of(t[i], mine.teacher.max);
        }
        at.advance(plan.stages);
      }
    }
    const RingPosition beyond = at; // the first tile that stays in shared memory
    // Calls body(stage, i) for the tiles in shared memory.
    const auto for_shared = [&](const auto& body) {
      RingPosition p = beyond;
      for (int i = kRegisterVectors; i < vectors; ++i) {
        body(p, i);
        p.advance(plan.stages);
      }
    };
    if (vectors > kRegisterVectors) {
      // The register tiles' stages go to the ring now: the slice may be longer than the ring.
      consumed += kRegisterVectors;
      __syncthreads();
      if (tid == 0) {
        ring.issue(consumed);
      }
      for_shared([&](const RingPosition& p, int i) {
        barrier_wait(full + p.stage, p.parity);
        float z[kVector];
        load_student(p.stage, i, z);
        mine.student.max = max_of(z, mine.student.max);
        if constexpr (kTeacher) {
          load_teacher(p.stage, i, z);
          mine.teacher.max = max_of(z, mine.teacher.max);
        }
        at.advance(plan.stages);
      });
    }

    // 2. Normalisers.
    const float student_base = finite_max(mine.student.max);
    const float teacher_base = finite_max(mine.teacher.max);
#pragma unroll
    for (int i = 0; i < kRegisterVectors; ++i) {
      if (i < vectors) {
        add_exponentials<kGeneral>(s[i], student_base, mine.student, c);
        if constexpr (kTeacher) {
          add_exponentials<kGeneral>(t[i], teacher_base, mine.teacher, c);
        }
      }
    }
    for_shared([&](const RingPosition& p, int i) {
      float z[kVector];
      load_student(p.stage, i, z);
      add_exponentials<kGeneral>(z, student_base, mine.student, c);
      if constexpr (kTeacher) {
        load_teacher(p.stage, i, z);
        add_exponentials<kGeneral>(z, teacher_base, mine.teacher, c);
      }
    });
    StatPartial partial;
    partial.student = warp_merge(mine.student, c.to_log2, c.unit_temperature);
    if constexpr (kTeacher) {
      partial.teacher = warp_merge(mine.teacher, c.to_log2, c.unit_temperature);
    }
    if (lane < size) {
      cluster.map_shared_rank(stat_slots, lane)[rank * kWarps + warp] = partial;
    }
    // All partials are written everywhere; also, all threads have read the register tiles and the slots of the last
    // exchange. The two kinds of slots alternate, so nobody overwrites what another still reads.
    cluster.sync();
    if (vectors <= kRegisterVectors) {
      consumed += vectors;
      if (tid == 0) {
        ring.issue(consumed);
      }
    }
    const StatPartial all = merge_stats<kThreads>(stat_slots, partials, c);
    const SideStats<float> student = side_stats(all.student, c);
    const SideStats<float> teacher = kTeacher ? side_stats(all.teacher, c) : SideStats<float>{};

    // 3. Columns. In registers, a and q take the place of the logits (the general mode keeps them and computes twice).
    SumPartial sums{.sums = {}, .student_best = INT32_MAX, .teacher_best = INT32_MAX};
    const int base_column = static_cast<int>(first_column) + tid * kVector;
    const auto visit = [&](int i, float(&zs)[kVector], float(&zt)[kVector], bool keep_logits) {
      const int column = base_column + i * kThreads * kVector;
      if (mine.student.max == student.max) {
        sums.student_best = first_of(zs, student.max, column, sums.student_best);
      }
      if (kTeacher && mine.teacher.max == teacher.max) {
        sums.teacher_best = first_of(zt, teacher.max, column, sums.teacher_best);
      }
      if (c.label_smoothing > 0) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          sums.sums.below_max += column + j < first_column + columns ? student.max - zs[j] : 0.0F;
        }
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const ColumnResult<float> x = column_of<kMode>(zs[j], kTeacher ? zt[j] : 0.0F, student, teacher, c, sums.sums);
        if (!keep_logits) {
          zs[j] = kTeacher ? x.a : x.q;
          if constexpr (kTeacher) {
            zt[j] = x.q;
          }
        }
      }
    };
#pragma unroll
    for (int i = 0; i < kRegisterVectors; ++i) {
      if (i < vectors) {
        visit(i, s[i], t[kTeacher ? i : 0], kGeneral);
      }
    }
    for_shared([&](const RingPosition& p, int i) {
      float zs[kVector];
      float zt[kVector] = {};
      load_student(p.stage, i, zs);
      if constexpr (kTeacher) {
        load_teacher(p.stage, i, zt);
      }
      visit(i, zs, zt, true);
    });
    const SumPartial warp_sums{warp_merge(sums.sums), warp_min(sums.student_best), warp_min(sums.teacher_best)};
    if (lane < size) {
      cluster.map_shared_rank(sum_slots, lane)[rank * kWarps + warp] = warp_sums;
    }
    cluster.sync(); // likewise for the sums
    const float mean = merge_mean<kGeneral>(sum_slots, partials, c);

    // 4. Gradient.
    if (args.gradient != nullptr) {
      const RowFactors<float> f = row_factors(c, student, teacher, weight);
      const int label_column = args.targets == nullptr ? -1 : static_cast<int>(label);
      const auto write = [&](int i, float(&zs)[kVector], float(&zt)[kVector], bool from_logits) {
        const int column = base_column + i * kThreads * kVector;
        float g[kVector];
        RowSums<float> unused;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          if (kGeneral || from_logits) {
            const float z = zs[j];
            const ColumnResult<float> x = column_of<kMode>(z, kTeacher ? zt[j] : 0.0F, student, teacher, c, unused);
            if constexpr (kGeneral) {
              g[j] = any_gradient(z, x, student, mean, f, c);
              g[j] -= column + j == label_column ? f.label * label_slope(z, c) : 0.0F;
            } else {
              g[j] = column_gradient<kDivergence>(x.a, x.q, x.q, mean, f);
              g[j] -= column + j == label_column ? f.label : 0.0F;
            }
          } else {
            const float q = kTeacher ? zt[j] : zs[j];
            g[j] = column_gradient<kDivergence>(zs[j], q, q, mean, f);
            g[j] -= column + j == label_column ? f.label : 0.0F;
          }
        }
        store_gradient(args, row, column, static_cast<int>(first_column) + columns - column, g);
      };
#pragma unroll
      for (int i = 0; i < kRegisterVectors; ++i) {
        if (i < vectors) {
          write(i, s[i], t[kTeacher ? i : 0], false);
        }
      }
      for_shared([&](const RingPosition& p, int i) {
        float zs[kVector];
        float zt[kVector] = {};
        load_student(p.stage, i, zs);
        if constexpr (kTeacher) {
          load_teacher(p.stage, i, zt);
        }
        write(i, zs, zt, true);
      });
    }
    if (vectors > kRegisterVectors) {
      consumed += vectors - kRegisterVectors;
      __syncthreads(); // everybody has read the tiles in shared memory for the last time
      if (tid == 0) {
        ring.issue(consumed);
      }
    }
    if (finishes) {
      // The slots stay until the next row's first exchange, which this warp has yet to join.
      const SumPartial total = merge_sums(sum_slots, partials);
      if (lane == 0) {
        RowEnds<float> ends;
        ends.has_teacher = kTeacher;
        ends.has_label = args.targets != nullptr;
        ends.label = label;
        ends.label_logit = label_logit;
        ends.token_weight = weight;
        ends.student_best = total.student_best;
        ends.teacher_best = total.teacher_best;
        ends.vocab = args.vocab;
        finish_row(out, args.rows_stride, c, student, teacher, total.sums, ends);
      }
    }
  }
  cluster.sync(); // no block ends while another may still write to it
#endif
}

template <int kThreads, typename Logit, RowMode kMode>
const char* launch(const RowArgs& args, const ClusterPlan& plan, int cluster_size, cudaStream_t stream) {
  const auto kernel = rows_cluster<kThreads, Logit, kMode>;
  const int bytes =
      shared_bytes(kThreads, static_cast<int>(sizeof(Logit)), has_teacher(kMode) ? 2 : 1, cluster_size, plan.stages);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster_size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;

  // How many clusters run at once; asked once per size, on the first device used (nodes have one kind of GPU).
  static std::array<std::atomic<int>, kMaxCluster + 1> at_once{};
  int clusters = at_once[static_cast<size_t>(cluster_size)].load();
  if (clusters == 0) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, available_shared(kThreads)) !=
            cudaSuccess ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters == 0) {
      cudaGetLastError();
      return "the cluster row kernel does not fit this device";
    }
    at_once[static_cast<size_t>(cluster_size)].store(clusters);
  }
  const int64_t used = std::min<int64_t>(clusters, args.num_rows);
  config.gridDim = dim3(static_cast<unsigned>(used * cluster_size));
  if (cudaLaunchKernelEx(&config, kernel, args, row_constants<float>(args), plan) != cudaSuccess) {
    return launch_error();
  }
  return launch_error();
}

} // namespace cluster_detail
} // namespace distill::losses
