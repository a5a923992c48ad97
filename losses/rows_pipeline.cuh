// A row on the blocks of a cluster, read once. Each thread copies its own
// columns of the rows ahead into its own part of shared memory, so that nobody
// waits for anybody to load. A row passes three phases:
//   1. maxima and normalising sums, from shared memory;
//   2. the columns: the row's sums, and a and q into registers (the row's place
//   in shared memory goes to rows ahead);
//   3. the gradient from a and q, once sum q a is known.
// Each phase but the first needs numbers of the whole row, which the blocks
// exchange. Phase 1 of the next row stands between 2 and 3, so that neither
// exchange is waited for idly.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "losses/rows_exchange.cuh"

namespace distill::losses::pipeline {

constexpr int kVector = kPipelineVector;
constexpr int kThreads = kPipelineThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileColumns = kThreads * kVector;

// Sizes that follow from what a slice holds; kTiles: of a slice, at most.
template <int kTilesOfSlice, typename Logit, bool kTeacher>
struct Geometry {
  static constexpr int kTiles = kTilesOfSlice;
  static constexpr int kBlocks = kTeacher ? 1 : 2; // of an SM: one side needs half the memory and half the
                                                   // registers
  static constexpr int kVectorBytes = kVector * static_cast<int>(sizeof(Logit));
  static constexpr uint32_t kSideBytes = kTileColumns * sizeof(Logit);
  static constexpr uint32_t kSlotBytes = kSideBytes * (kTeacher ? 2 : 1);
  static constexpr int kExchangeBytes = static_cast<int>(sizeof(ExchangeSlots<kWarps>));
  static constexpr int kAvailable = (kBlocks == 1 ? 227 : 113) * 1024;
  static constexpr int kFit = (kAvailable - kExchangeBytes) / static_cast<int>(kSlotBytes);
  static constexpr int kSlots = kFit < 24 ? kFit : 24; // tiles that shared memory holds: a row and what is on its way
  static constexpr int kRowsAhead = (kSlots - 1) / kTiles; // that the copies have begun when phase 2 begins
  static constexpr int kBytes = kSlots * static_cast<int>(kSlotBytes) + kExchangeBytes;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The offset is a constant of the instruction: as part of a pointer it would cost registers that there are not.
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

// kSlots tiles were issued from a row's first on: all but kSlots - 1 - tile are
// needed. `tile` is a constant.
template <int kSlots, int kTile = 0>
__device__ __forceinline__ void wait_for_tile(int tile) {
  if (tile == kTile) {
    wait_copies<kSlots - 1 - kTile>();
  } else if constexpr (kTile + 1 < kPipelineTiles) {
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
    z[j] = j < valid ? __bfloat16_as_ushort(global[j]) : uint16_t{0xff80}; // two bytes are too few for a copy
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared + 2 * j), "h"(z[j]) : "memory");
  }
}

// This thread's columns: kVector of them in each tile, as many as exist in the
// block's slice.
struct Share {
  int first; // column of the first tile's
  int full; // tiles in which all exist
  int part; // how many exist in tile `full`

  __device__ int valid(int tile) const {
    return tile < full ? kVector : (tile == full ? part : 0);
  }
};

// The copies of this thread's columns, tile after tile, through the rows of the
// cluster that count. Targets are read a row ahead of their use.
template <typename G, typename Logit, bool kTeacher>
class Loader {
 public:
  __device__ Loader(const RowArgs& args, const Share& share, int row, int row_step)
      : args_(args), share_(share), row_(row - row_step), row_step_(row_step), ahead_(target_of(row)) {}

  // The row under way, or one beyond the last.
  __device__ int row() const {
    return row_;
  }

  // Goes to the next row that counts; calls skipped(row) for those in between.
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

  // A tile of the row under way into one slot; always one group of copies, empty after the last row.
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

  // Labels are smaller than 2^31: the lower half of the little-endian number is
  // all of it.
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

// One side's sums of a thread, relative to the maximum of its warp's first
// tile. Should a later logit be so far above that one that the sums may
// overflow, the warp adds its columns up again relative to their maximum.
struct Running {
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

// A thread's columns of one row after another.
template <typename G, typename Logit, bool kGeneral>
struct Columns {
  const RowArgs& args;
  const RowConstants<float>& c;
  const PipelinePlan& plan;
  const Share& share;
  uint32_t base; // this thread's place in slot 0
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

  // One side of a tile after bias and softcap; columns that do not exist are
  // -inf.
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

  // The first of this thread's columns with `value`; side: student or teacher.
  template <typename Side>
  __device__ __forceinline__ int first_of(float value, const Side& side) const {
    int best = INT32_MAX;
#pragma unroll 1
    for (int i = plan.tiles - 1; i >= 0; --i) {
      float z[kVector];
      side(i, z);
#pragma unroll
      for (int j = kVector - 1; j >= 0; --j) {
        best = z[j] == value ? share.first + i * kTileColumns + j : best;
      }
    }
    return best;
  }

  // Relative to the warp's maximum.
  template <typename Side>
  __device__ __forceinline__ SidePart part(Running run, const Side& side) const {
    SidePart out;
    out.max = lanes_max(kAllLanes, run.max);
    if (out.max == -INFINITY) {
      out.sum = run.sum; // 0, or the NaN that was met
      return out;
    }
    if ((out.max - run.base) * fmaxf(c.to_log2, kLog2E<float>) > Running::kRoom) {
      run = {run.max, out.max, 0, 0};
#pragma unroll 1
      for (int i = 0; i < plan.tiles; ++i) {
        float z[kVector];
        side(i, z);
        run.template add<kGeneral>(z, c);
      }
    }
    // In add() the base times to_log2 was rounded, which is made good here,
    // once for all columns.
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

#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The gradient of a column, but for the label; `kept` is q, or in general log2
// q, from which the capped logit follows.
template <Divergence kDivergence, bool kGeneral>
__device__ __forceinline__ float gradient_of(
    float a, float kept, float mean, const SideStats<float>& student, const RowFactors<float>& f,
    const RowConstants<float>& c) {
  if constexpr (!kGeneral) {
    return unit_gradient<kDivergence>(a, kept, mean, f);
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

template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
__global__ __launch_bounds__(kThreads, (Geometry<kTiles, Logit, kTeacher>::kBlocks)) void rows_pipeline(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<float> c,
    const __grid_constant__ PipelinePlan plan, const __grid_constant__ int cluster_size) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using G = Geometry<kTiles, Logit, kTeacher>;
  constexpr int kSlots = G::kSlots;
  constexpr bool kKeeps = kUsesQa<kDivergence>; // a and q from phase 2 to phase
                                                // 3; otherwise phase 2 writes
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % cluster_size;
  auto& exchange_slots = *reinterpret_cast<ExchangeSlots<kWarps>*>(shared + kSlots * G::kSlotBytes);
  Exchange<kWarps> exchange{exchange_slots, cluster_size, rank, tid / kWarp, tid % kWarp};
  exchange.open();

  const int rows = static_cast<int>(args.num_rows);
  const int first_column = rank * plan.slice;
  const int existing = static_cast<int>(min(max(args.vocab - first_column, int64_t{0}), int64_t{plan.slice}));
  const int mine = tid * kVector;
  Share share;
  share.first = first_column + mine;
  share.full = existing < mine + kVector ? 0 : (existing - mine - kVector) / kTileColumns + 1;
  share.part = min(max(existing - mine - share.full * kTileColumns, 0), kVector);
  Columns<G, Logit, kGeneral> columns{
      args, c, plan, share, shared_address(shared) + static_cast<uint32_t>(tid) * G::kVectorBytes};
  const auto student_side = [&](int tile, float(&z)[kVector]) { columns.student(tile, z); };
  const auto teacher_side = [&](int tile, float(&z)[kVector]) { columns.teacher(tile, z); };
  const auto zero = [&](int row) {
    if (rank == 0 && tid == 0) {
      zero_row(static_cast<float*>(args.rows) + row, args.rows_stride);
    }
    const float zeros[kVector] = {};
#pragma unroll 1
    for (int i = 0; i < plan.tiles && args.gradient != nullptr; ++i) {
      columns.write(row, i, zeros);
    }
  };

  // The row in phase 2, and those after it whose copies have begun.
  int ahead[G::kRowsAhead + 1];
  Loader<G, Logit, kTeacher> loader(
      args, share, static_cast<int>(blockIdx.x) / cluster_size, static_cast<int>(gridDim.x) / cluster_size);
  for_constants<kSlots>([&](auto s) {
    constexpr int kSlot = decltype(s)::value;
    if constexpr (kSlot % kTiles == 0) {
      loader.next_row(zero);
      ahead[kSlot / kTiles] = loader.row();
    }
    loader.template issue<kSlot % kTiles>(columns.base + kSlot * G::kSlotBytes);
  });
  // The barriers exist, and every block of the cluster runs, before anybody
  // sends anything.
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");

  // 1. Maxima and normalising sums.
  float student_max = 0; // this thread's
  float teacher_max = 0;
  const auto phase_1 = [&](int parity) {
    Running student;
    Running teacher;
    float zs[2][kVector]; // a tile, and the next one ahead of its use
    float zt[2][kVector];
    const auto read = [&](int i) {
      wait_for_tile<kSlots>(i);
      columns.student(i, zs[i % 2]);
      if constexpr (kTeacher) {
        columns.teacher(i, zt[i % 2]);
      }
    };
    read(0);
    student.begin(zs[0]);
    if constexpr (kTeacher) {
      teacher.begin(zt[0]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i + 1 < kTiles && columns.exists(i + 1)) {
        read(i + 1);
      }
      if (columns.exists(i)) {
        student.template add<kGeneral>(zs[i % 2], c);
        if constexpr (kTeacher) {
          teacher.template add<kGeneral>(zt[i % 2], c);
        }
      }
    }
    student_max = student.max;
    teacher_max = teacher.max;
    const SidePart student_part = columns.part(student, student_side);
    exchange.post_stats(parity, student_part, kTeacher ? columns.part(teacher, teacher_side) : SidePart{}, c);
  };

  if (ahead[0] < rows) {
    phase_1(0);
  }
  for (uint32_t turn = 0; ahead[0] < rows; ++turn) {
    const int row = ahead[0];
    const int parity = static_cast<int>(turn & 1U);
    const uint32_t phase = (turn >> 1U) & 1U;
    const int target = args.targets == nullptr ? -1 : static_cast<int>(args.targets[row]);
    const float weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];

    exchange.wait_stats(parity, phase);
    SideStats<float> student;
    SideStats<float> teacher;
    exchange.stats(parity, c, student, teacher);
    if constexpr (!kTeacher) {
      teacher = SideStats<float>{};
    }
    const RowFactors<float> factors = row_factors(c, student, teacher, weight);
    if (kKeeps && tid == 0) {
      exchange_slots.factors[parity] = make_float4(factors.soft, factors.hard, factors.uniform, 0.0F);
    }

    // 2. The columns.
    RowSums<float> sums;
    const auto visit = [&](int tile, int j, float zs, float zt, RowSums<float>& add) {
      if constexpr (kGeneral) {
        if (c.label_smoothing > 0) {
          add.below_max += j < share.valid(tile) ? student.max - zs : 0.0F;
        }
      }
      if constexpr (kTeacher) {
        return column<kDivergence, kGeneral>(zs, zt, student, teacher, c, add);
      } else {
        return column(zs, student, c, add);
      }
    };
    if (student_max == student.max) {
      exchange.post_best(parity, 0, columns.first_of(student.max, student_side));
    }
    if (kTeacher && teacher_max == teacher.max) {
      exchange.post_best(parity, 1, columns.first_of(teacher.max, teacher_side));
    }
    if (tid == 0) {
      // The thread with the label's column, if it is in this block.
      const int local = target - first_column;
      exchange_slots.label_thread[parity] = local >= 0 && local < existing ? local % kTileColumns / kVector : -1;
    }
    if (const int local = target - first_column;
        local >= 0 && local < existing && local % kTileColumns / kVector == tid) {
      const int tile = local / kTileColumns;
      const int at = local % kVector;
      float zs[kVector];
      float zt[kVector] = {};
      columns.student(tile, zs);
      if constexpr (kTeacher) {
        columns.teacher(tile, zt);
      }
      float label_logit = zs[0];
      float teacher_logit = zt[0];
#pragma unroll
      for (int j = 1; j < kVector; ++j) {
        label_logit = j == at ? zs[j] : label_logit;
        teacher_logit = j == at ? zt[j] : teacher_logit;
      }
      RowSums<float> unused;
      const ColumnResult<float> r = visit(tile, at, label_logit, teacher_logit, unused);
      const float taken = factors.label * (kGeneral ? label_slope(label_logit, c) : 1.0F);
      exchange_slots.label[parity] = make_float4(r.a, kGeneral ? r.lq : r.q, taken, label_logit);
    }
    float a[kKeeps ? kTiles : 1][kVector];
    float q[kKeeps ? kTiles : 1][kVector]; // in general log2 q, from which all else follows
    for_constants<kTiles>([&](auto constant) {
      constexpr int i = decltype(constant)::value;
      const uint32_t place = columns.place(i);
      if (columns.exists(i)) {
        float zs[kVector];
        float zt[kVector] = {};
        columns.student(i, zs);
        if constexpr (kTeacher) {
          columns.teacher(i, zt);
        }
        float g[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const ColumnResult<float> r = visit(i, j, zs[j], zt[j], sums);
          if constexpr (kKeeps) {
            a[i][j] = r.a;
            q[i][j] = kGeneral ? r.lq : r.q;
          } else {
            g[j] = gradient_of<kDivergence, kGeneral>(r.a, kGeneral ? r.lq : r.q, 0.0F, student, factors, c);
          }
        }
        if constexpr (!kKeeps) {
          if (args.gradient != nullptr) {
            columns.write(row, i, g);
          }
        }
      }
      if constexpr ((i + kSlots) % kTiles == 0) {
        loader.next_row(zero);
      }
      loader.template issue<(i + kSlots) % kTiles>(place);
    });
    // The label's column again, with what the label takes off; by the thread
    // that has written it before.
    const auto write_label = [&](float mean, const RowFactors<float>& f) {
      const int local = (args.targets == nullptr ? -1 : static_cast<int>(args.targets[row])) - first_column;
      const float4 kept = exchange_slots.label[parity];
      const float g = gradient_of<kDivergence, kGeneral>(kept.x, kept.y, mean, student, f, c);
      columns.write_one(row, local - mine, g - kept.z);
    };
    const auto has_label = [&] {
      const int local = target - first_column;
      return local >= 0 && local < existing && local % kTileColumns / kVector == tid;
    };
    if (!kKeeps && args.gradient != nullptr && has_label()) {
      write_label(0.0F, factors);
    }
    columns.next_slots();
    exchange.post_sums(parity, sums, c);

#pragma unroll
    for (int n = 0; n < G::kRowsAhead; ++n) {
      ahead[n] = ahead[n + 1];
    }
    ahead[G::kRowsAhead] = loader.row();
    if (ahead[0] < rows) {
      phase_1(1 - parity);
    }

    // 3. The gradient.
    // One warp of one block finishes the row; in turns, so that a block that is late for it is not so in every row.
    const bool finishes =
        tid / kWarp == kWarps - 1 && static_cast<int>(turn % static_cast<uint32_t>(cluster_size)) == rank;
    if (kKeeps || finishes || tid < kWarp) {
      exchange.wait_sums(parity, phase);
    }
    if (kKeeps && args.gradient != nullptr) {
      const float mean = exchange.template mean<kDivergence>(parity);
      const float4 kept = exchange_slots.factors[parity];
      const RowFactors<float> again{kept.x, kept.y, kept.z, 0.0F};
      columns.write_row(row, [&](int tile, int j) {
        return gradient_of<kDivergence, kGeneral>(
            a[kKeeps ? tile : 0][j], q[kKeeps ? tile : 0][j], mean, student, again, c);
      });
      if (exchange_slots.label_thread[parity] == tid) {
        write_label(mean, again);
      }
    }
    if (finishes) {
      SideStats<float> student_again; // cheaper than registers through two phases
      SideStats<float> teacher_again;
      exchange.stats(parity, c, student_again, teacher_again);
      RowEnds<float> ends;
      const RowSums<float> all = exchange.sums(parity, c, ends);
      if (tid % kWarp == 0) {
        ends.has_teacher = kTeacher;
        ends.has_label = args.targets != nullptr;
        ends.label = ends.has_label ? args.targets[row] : -1;
        ends.token_weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
        ends.vocab = args.vocab;
        finish_row(
            static_cast<float*>(args.rows) + row, args.rows_stride, c, student_again,
            kTeacher ? teacher_again : SideStats<float>{}, all, ends);
      }
    }
    if (tid == 0) {
      exchange.expect(parity); // the next but one row's
    }
  }
  // No block ends while another may still send to it.
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
const char* launch_as(const RowArgs& args, const PipelinePlan& plan, int cluster_size, void* stream) {
  const auto kernel = rows_pipeline<kTiles, Logit, kDivergence, kTeacher, kGeneral>;
  constexpr int kBytes = Geometry<kTiles, Logit, kTeacher>::kBytes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster_size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kBytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;

  // How many clusters run at once; asked once per size, on the first device
  // used (nodes have one kind of GPU).
  static std::array<std::atomic<int>, kMaxCluster + 1> at_once{};
  int clusters = at_once[static_cast<size_t>(cluster_size)].load();
  if (clusters == 0) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) != cudaSuccess ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters == 0) {
      cudaGetLastError();
      return "the pipelined row kernel does not fit this device";
    }
    at_once[static_cast<size_t>(cluster_size)].store(clusters);
  }
  const int64_t used = std::min<int64_t>(clusters, args.num_rows);
  config.gridDim = dim3(static_cast<unsigned>(used * cluster_size));
  if (cudaLaunchKernelEx(&config, kernel, args, row_constants<float>(args), plan, cluster_size) != cudaSuccess) {
    return launch_error();
  }
  return launch_error();
}

template <typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
const char* launch(const RowArgs& args, const PipelinePlan& plan, int cluster_size, void* stream) {
  if constexpr (!kGeneral) {
    switch (plan.tiles) {
      case 5:
        return launch_as<5, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 6:
        return launch_as<6, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 7:
        return launch_as<7, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 8:
        return launch_as<8, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      default:
        return "row kernel: no such number of tiles";
    }
  } else {
    return launch_as<kPipelineTiles, Logit, kDivergence, kTeacher, true>(args, plan, cluster_size, stream);
  }
}

} // namespace distill::losses::pipeline
