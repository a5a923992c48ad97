// Reductions of a row's numbers over the blocks of a cluster, without a barrier of the cluster. Each warp stores its
// partial result in shared memory. The last warp of a block merges these and sends the block's partial result to every
// block of the cluster (its own too) through distributed shared memory. A thread that needs the row's numbers waits
// until the results of all blocks have arrived. All merges have one fixed order, so every thread of every block gets
// the same bits.
#pragma once

#include "losses/rows/cuda/cluster/plan.h"
#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

// The sums of a row that every divergence has (see RowSums), in the order in which lanes 0, 4, 8, ... hold them.
struct SumIndex {
  static constexpr int kLoss = 0;
  static constexpr int kQa = 1;
  static constexpr int kPd = 2;
  static constexpr int kQd = 3;
  static constexpr int kMass = 4;
  static constexpr int kQlq = 5;
  static constexpr int kPlp = 6;
  static constexpr int kQ = 7; // read for skew forward KL only
  static constexpr int kCount = 8;
};

struct alignas(16) SidePartial {
  float max = -INFINITY;
  float sum = 0;
  float unit_sum = 0;
  float unused = 0;
};

// A block's part of the numbers that only the warp that writes the row's metrics needs. 0 and kNoColumn where the block
// has neither the label nor a maximum.
struct alignas(16) EpiloguePartial {
  float below_max;
  float label_logit;
  int student_best;
  int teacher_best;
};
constexpr int kNoColumn = INT32_MAX;

// Counts the warps of the block that have stored their partial result; the barrier orders these stores before the
// loads of the last warp.
struct WarpArrivals {
  uint64_t barrier;
  unsigned count;
  unsigned unused;
};

// Shared memory of the reductions. Two rows are in the pipeline at a time, so every slot exists twice: the first index
// is the parity of the row's turn.
template <int kWarps>
struct alignas(16) ClusterReduceSlots {
  static_assert(kWarps == kMaxCluster, "sums are over 16 parts");

  uint64_t stats_full[2];
  uint64_t sums_full[2];
  SidePartial stats_of_warp[2][2][kWarps]; // [parity][side][warp]
  SidePartial stats_of_block[2][2][kMaxCluster];
  float numbers_of_warp[2][SumIndex::kCount][kWarps];
  float numbers_of_block[2][SumIndex::kCount][kMaxCluster];
  float below_max_of_warp[2][kWarps];
  EpiloguePartial rest_of_block[2][kMaxCluster];
  float4 label[2]; // of the label's column: a, q, what the label subtracts from the gradient, the logit
  int label_thread[2]; // the thread with the label's column; -1: another block has it
  int best[2][2]; // [parity][side], the first column with the maximum
  float4 factors[2][kWarps]; // RowFactors of the row, which every warp reads again in phase 3
  WarpArrivals stats_arrivals;
  WarpArrivals sums_arrivals;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint32_t remote_address(uint32_t local, int rank) {
  uint32_t remote = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 "
        "p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// Stores `value` in another block's shared memory (a shared::cluster address); a barrier there counts its bytes.
__device__ __forceinline__ void send(uint32_t address, float value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 "
      "[%0], %1, [%2];" ::"r"(address),
      "f"(value), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void send(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// Whether this warp is the last of `warps` to arrive; the stores of the others before their arrival are then visible to
// it. The count tells which warp is last; the barrier, which is complete by then, orders the stores. `phase`: 0 and 1
// in turns.
__device__ __forceinline__ bool last_warp(WarpArrivals* passed, unsigned warps, int lane, uint32_t phase) {
  unsigned before = 0;
  barrier_arrive(&passed->barrier); // every lane, for its own stores
  if (lane == 0) {
    asm volatile("atom.relaxed.cta.shared::cta.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "r"(shared_address(&passed->count))
                 : "memory");
  }
  before = __shfl_sync(kAllLanes, before, 0);
  if (before % warps != warps - 1) {
    return false;
  }
  barrier_wait(&passed->barrier, phase);
  return true;
}

// The maximum over the lanes of `mask` in one instruction: floats compare like these integers. Never NaN.
__device__ __forceinline__ float lanes_max(unsigned mask, float value) {
  const int bits = __float_as_int(value);
  const int best = __reduce_max_sync(mask, bits ^ ((bits >> 31) & 0x7fffffff));
  return __int_as_float(best ^ ((best >> 31) & 0x7fffffff));
}

// The sum over the warp of two numbers: lanes 0 to 15 get the first's, the others the second's.
__device__ __forceinline__ float warp_sum_of_two(float first, float second, int lane) {
  const bool upper = lane >= 16;
  float sum = (upper ? second : first) + __shfl_xor_sync(kAllLanes, upper ? first : second, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  return sum;
}

// The sum over 16 lanes, separately for the lower and the upper half of the warp.
__device__ __forceinline__ float half_sum(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// The sum over the warp of eight numbers a lane: lane l gets number l / 4. Nine shuffles instead of forty.
__device__ __forceinline__ float warp_sum_of_eight(const float (&v)[8], int lane) {
  const bool upper = (lane & 16) != 0;
  float four[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    four[j] = (upper ? v[j + 4] : v[j]) + __shfl_xor_sync(kAllLanes, upper ? v[j] : v[j + 4], 16);
  }
  const bool second = (lane & 8) != 0;
  float two[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    two[j] = (second ? four[j + 2] : four[j]) + __shfl_xor_sync(kAllLanes, second ? four[j] : four[j + 2], 8);
  }
  const bool odd = (lane & 4) != 0;
  float one = (odd ? two[1] : two[0]) + __shfl_xor_sync(kAllLanes, odd ? two[0] : two[1], 4);
  one += __shfl_xor_sync(kAllLanes, one, 2);
  return one + __shfl_xor_sync(kAllLanes, one, 1);
}

template <int kWarps>
struct ClusterReduce {
  ClusterReduceSlots<kWarps>& slots;
  int cluster_size;
  int rank; // of this block
  int warp;
  int lane;

  // Initialises the slots. Every thread calls it first; a barrier of the whole cluster must follow.
  __device__ void init() {
    auto* words = reinterpret_cast<uint32_t*>(&slots);
    for (int k = warp * kWarp + lane; k < static_cast<int>(sizeof(slots) / 4); k += kWarps * kWarp) {
      words[k] = 0; // slots of blocks that do not exist add nothing
    }
    __syncthreads();
    if (warp == 0 && lane == 0) {
      for (int parity = 0; parity < 2; ++parity) {
        barrier_init(slots.stats_full + parity, 1);
        barrier_init(slots.sums_full + parity, 1);
      }
      barrier_init(&slots.stats_arrivals.barrier, kWarps * kWarp);
      barrier_init(&slots.sums_arrivals.barrier, kWarps * kWarp);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      expect(0);
      expect(1);
    }
    if (warp == 0 && lane < kMaxCluster) {
      for (int k = 0; k < 4; ++k) {
        slots.stats_of_block[k / 2][k % 2][lane].max = -INFINITY;
        slots.rest_of_block[k / 2][lane] = {0, 0, kNoColumn, kNoColumn};
        slots.best[k / 2][k % 2] = kNoColumn;
      }
    }
  }

  // Arms the barriers for the next row of this parity: the bytes that all blocks will send. One thread of the block,
  // after the last read of the previous row of this parity.
  __device__ void expect(int parity) {
    barrier_expect(slots.stats_full + parity, static_cast<uint32_t>(cluster_size) * 2 * sizeof(SidePartial));
    barrier_expect(
        slots.sums_full + parity,
        static_cast<uint32_t>(cluster_size) * (SumIndex::kCount * sizeof(float) + sizeof(EpiloguePartial)));
  }

  // Contributes to the row's normalisers: the warp's maxima (the same in all lanes) and each lane's sums relative to
  // them.
  __device__ __forceinline__ void post_stats(
      int parity, const SidePartial& student, const SidePartial& teacher, const RowConstants<float>& c) {
    const bool upper = lane >= 16;
    SidePartial part{upper ? teacher.max : student.max, warp_sum_of_two(student.sum, teacher.sum, lane)};
    if (!c.unit_temperature) {
      part.unit_sum = warp_sum_of_two(student.unit_sum, teacher.unit_sum, lane);
    }
    if (lane % 16 == 0) {
      slots.stats_of_warp[parity][lane / 16][warp] = part;
    }
    if (!last_warp(&slots.stats_arrivals, kWarps, lane, static_cast<uint32_t>(parity))) {
      return;
    }
    part = merged(slots.stats_of_warp[parity][lane / 16], kWarps, c);
    const int to = lane % 16;
    if (to < cluster_size) {
      send(
          remote_address(shared_address(&slots.stats_of_block[parity][lane / 16][rank]), to),
          make_float4(part.max, part.sum, part.unit_sum, 0.0F),
          remote_address(shared_address(slots.stats_full + parity), to));
    }
  }

  __device__ __forceinline__ void wait_stats(int parity, uint32_t phase) {
    barrier_wait(slots.stats_full + parity, phase);
  }

  // The row's normalisers, after wait_stats() and until the row after the next one posts its own.
  __device__ __forceinline__ void stats(
      int parity, const RowConstants<float>& c, SideStats<float>& student, SideStats<float>& teacher) {
    const SidePartial part = merged(slots.stats_of_block[parity][lane / 16], kMaxCluster, c);
    const SideStats<float> mine = side_stats(SideSums<float>{part.max, part.sum, part.unit_sum}, c);
    student = of_lane(mine, 0);
    teacher = of_lane(mine, 16);
  }

  // Called by a thread that has the maximum of a side (0 student, 1 teacher), with its first column of that value.
  __device__ __forceinline__ void post_best(int parity, int side, int column) {
    atomicMin(&slots.best[parity][side], column);
  }

  // Contributes each lane's sums, after the block's label and best columns are stored.
  __device__ __forceinline__ void post_sums(int parity, const RowSums<float>& mine, const RowConstants<float>& c) {
    const float numbers[8] = {mine.loss, mine.q_a, mine.p_d, mine.q_d, mine.mass, mine.q_lq, mine.p_lp, mine.q};
    const float warp_number = warp_sum_of_eight(numbers, lane);
    if (lane % 4 == 0) {
      slots.numbers_of_warp[parity][lane / 4][warp] = warp_number;
    }
    if (c.label_smoothing > 0) {
      const float below_max = warp_sum(mine.below_max);
      if (lane == 0) {
        slots.below_max_of_warp[parity][warp] = below_max;
      }
    }
    if (!last_warp(&slots.sums_arrivals, kWarps, lane, static_cast<uint32_t>(parity))) {
      return;
    }
    const float number = sum_of_parts(slots.numbers_of_warp[parity][lane / 4]);
    const uint32_t barrier = shared_address(slots.sums_full + parity);
    const uint32_t number_slot = shared_address(&slots.numbers_of_block[parity][lane / 4][rank]);
    for (int to = lane % 4; to < cluster_size; to += 4) {
      send(remote_address(number_slot, to), number, remote_address(barrier, to));
    }
    const float below_max = c.label_smoothing > 0 ? sum_of_parts(slots.below_max_of_warp[parity]) : 0.0F;
    const float label_logit = slots.label_thread[parity] >= 0 ? slots.label[parity].w : 0.0F;
    const float4 rest = make_float4(
        below_max, label_logit, __int_as_float(slots.best[parity][0]), __int_as_float(slots.best[parity][1]));
    if (lane < cluster_size) {
      send(
          remote_address(shared_address(&slots.rest_of_block[parity][rank]), lane), rest,
          remote_address(barrier, lane));
    }
    __syncwarp();
    if (lane < 2) {
      slots.best[parity][lane] = kNoColumn; // for the row after the next one
    }
  }

  __device__ __forceinline__ void wait_sums(int parity, uint32_t phase) {
    barrier_wait(slots.sums_full + parity, phase);
  }

  // The mean of a over the row, after wait_sums().
  template <Divergence kDivergence>
  __device__ __forceinline__ float mean(int parity) {
    const float sum_q_a = sum_of_parts(slots.numbers_of_block[parity][SumIndex::kQa]);
    const float sum_q =
        kDivergence == Divergence::kSkewForwardKl ? sum_of_parts(slots.numbers_of_block[parity][SumIndex::kQ]) : 0.0F;
    return mean_a<kDivergence>(sum_q_a, sum_q);
  }

  // All sums of the row, after wait_sums(), in lane 0.
  __device__ RowSums<float> sums(int parity, const RowConstants<float>& c, RowEpilogue<float>& end) {
    using N = SumIndex;
    const float number = sum_of_parts(slots.numbers_of_block[parity][lane / 4]);
    const EpiloguePartial rest =
        lane < kMaxCluster ? slots.rest_of_block[parity][lane] : EpiloguePartial{0, 0, kNoColumn, kNoColumn};
    end.label_logit = warp_sum(rest.label_logit);
    end.student_best = __reduce_min_sync(kAllLanes, rest.student_best);
    end.teacher_best = __reduce_min_sync(kAllLanes, rest.teacher_best);
    const float below_max = c.label_smoothing > 0 ? warp_sum(rest.below_max) : 0.0F;
    float all[N::kCount];
#pragma unroll
    for (int k = 0; k < N::kCount; ++k) {
      all[k] = __shfl_sync(kAllLanes, number, 4 * k);
    }
    return {all[N::kLoss], all[N::kQa],  all[N::kPd], all[N::kQd], all[N::kMass],
            all[N::kQlq],  all[N::kPlp], below_max,   all[N::kQ]};
  }

 private:
  // Partial results of one side, merged over each half of the warp.
  __device__ __forceinline__ static SidePartial merged(
      const SidePartial* parts, int count, const RowConstants<float>& c) {
    const int which = static_cast<int>(threadIdx.x) % 16;
    const SidePartial part = which < count ? parts[which] : SidePartial{};
    const unsigned half = (threadIdx.x & 16U) != 0 ? 0xffff0000U : 0x0000ffffU;
    SidePartial all;
    all.max = lanes_max(half, part.max);
    all.sum = half_sum(scaled_to(part.sum, part.max, all.max, c.to_log2));
    if (!c.unit_temperature) {
      all.unit_sum = half_sum(scaled_to(part.unit_sum, part.max, all.max, kLog2E<float>));
    }
    return all;
  }

  __device__ __forceinline__ static SideStats<float> of_lane(const SideStats<float>& s, int lane) {
    return {
        __shfl_sync(kAllLanes, s.max, lane), __shfl_sync(kAllLanes, s.log2_sum, lane),
        __shfl_sync(kAllLanes, s.unit_log2_sum, lane), __shfl_sync(kAllLanes, s.lse, lane)};
  }

  // The sum of 16 numbers, the same in four consecutive lanes.
  __device__ __forceinline__ float sum_of_parts(const float (&parts)[kMaxCluster]) {
    const float4 four = reinterpret_cast<const float4*>(parts)[lane % 4];
    float sum = (four.x + four.y) + (four.z + four.w);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return sum + __shfl_xor_sync(kAllLanes, sum, 1);
  }
};

#endif

} // namespace distill::losses
