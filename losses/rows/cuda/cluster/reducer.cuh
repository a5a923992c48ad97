// One warp of a block reduces: it merges what the workers hand in, sends the block's part to all blocks of the cluster
// (its own too) through distributed shared memory, merges the parts that arrive and hands the row's numbers out. All
// merges have one fixed order, so every block gets the same bits. Workers spend no instruction on any of this.
#pragma once

#include "losses/rows/cuda/cluster/mode_traits.h"
#include "losses/rows/cuda/cluster/row_slots.cuh"
#include "losses/rows/cuda/cluster/softcap.cuh"
#include "losses/rows/row_metrics.h"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Returns the sum over 16 lanes, separately for the lower and the upper half of the warp.
__device__ __forceinline__ float half_sum(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// Returns the maximum likewise. Two instructions for the whole warp are faster than one for each half, in turns.
__device__ __forceinline__ float half_max(float value, int lane) {
  const float lower = lanes_max(lane < 16 ? value : -INFINITY);
  const float upper = lanes_max(lane < 16 ? -INFINITY : value);
  return lane < 16 ? lower : upper;
}

template <Divergence kDivergence, bool kTeacher, Mode kMode>
struct Reducer {
  static constexpr bool kSubtracts = kSubtractsFirst<kMode>;
  const RowArgs& args;
  const RowConstants<float>& c;
  RowSlots& slots;
  const int cluster_size;
  const int rank; // the rank of this block
  const int lane;
  const int first_column; // of the block's slice
  const int existing; // columns of the slice that exist

  // Reduces one row. `before` writes the metrics of the previous row while the workers compute this row's columns, when
  // nobody waits for the reducer.
  template <typename Before>
  __device__ __forceinline__ void reduce(int row, uint32_t turn, const Before& before) const {
    const int parity = static_cast<int>(turn & 1U);
    const uint32_t phase = (turn >> 1U) & 1U;
    const int64_t target = args.targets == nullptr ? -1 : args.targets[row]; // loaded before they are needed
    const float weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
    const int local = static_cast<int>(target) - first_column;
    const bool here = local >= 0 && local < existing;
    // The label's logit is read here, before any gradient is written, perhaps over it; it is needed only below.
    const float label_logit = kKeepsExponentials<kMode> && here ? logit_of_label(row, target, local) : 0.0F;
    if (lane == 0) {
      barrier_expect(slots.stats_full + parity, static_cast<uint32_t>(cluster_size) * 2 * sizeof(SidePartial));
      barrier_expect(
          slots.sums_full + parity,
          static_cast<uint32_t>(cluster_size) * (SumIndex::kCount * sizeof(float) + sizeof(EpiloguePartial)));
      slots.row[parity].label_thread = here ? local % (kClusterThreads * kClusterVector) / kClusterVector : -1;
      slots.row[parity].label_column = local;
    }
    const int to = lane % 16;
    const uint32_t part_there = remote_address(shared_address(&slots.stats_of_block[parity][lane / 16][rank]), to);
    const uint32_t barrier_there = remote_address(shared_address(slots.stats_full + parity), to);

    barrier_wait(slots.stats_in + parity, phase);
    const float4 part = part_of_block(parity);
    if (to < cluster_size) {
      send(part_there, part, barrier_there);
    }
    barrier_wait(slots.stats_full + parity, phase);
    if (kKeepsExponentials<kMode> && lane == 0) { // it is read before the workers may go on
      slots.row[parity].label_logit = label_logit;
    }
    hand_out_row(parity, weight);
    before();

    barrier_wait(slots.sums_in + parity, phase);
    send_sums(parity);
    barrier_wait(slots.sums_full + parity, phase);
    if constexpr (kUsesQa<kDivergence>) {
      hand_out_mean(parity);
    }
  }

  // Writes the row's metrics; one block of the cluster does it.
  __device__ __forceinline__ void write_metrics(int row, int parity) const {
    const float number = sum_of_parts(slots.numbers_of_block[parity][lane / 4]);
    const EpiloguePartial rest =
        lane < kMaxCluster ? slots.rest_of_block[parity][lane] : EpiloguePartial{0, 0, kNoColumn, kNoColumn};
    RowEpilogue<float> end;
    end.label_logit = warp_sum(rest.label_logit);
    end.student_best = __reduce_min_sync(kAllLanes, rest.student_best);
    end.teacher_best = __reduce_min_sync(kAllLanes, rest.teacher_best);
    const float below_max = c.label_smoothing > 0 ? warp_sum(rest.below_max) : 0.0F;
    float all[SumIndex::kCount];
#pragma unroll
    for (int k = 0; k < SumIndex::kCount; ++k) {
      all[k] = __shfl_sync(kAllLanes, number, 4 * k);
    }
    if (lane != 0) {
      return;
    }
    const RowSums<float> sums = row_sums(all, below_max);
    end.has_teacher = kTeacher;
    end.has_label = args.targets != nullptr;
    end.label = end.has_label ? args.targets[row] : -1;
    end.token_weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
    end.vocab = args.vocab;
    end.saved = args.saved == nullptr ? nullptr : static_cast<float*>(args.saved) + row;
    float* out = static_cast<float*>(args.metrics) + row;
    finish_row(out, args.metrics_stride, c, slots.row[parity].student, slots.row[parity].teacher, sums, end);
    if (!kTeacher || !end.has_label) { // otherwise finish_row() or the worker with the label's column writes it
      out[kTeacherCe * args.metrics_stride] = 0;
    }
  }

 private:
  // Returns the student's logit after its softcap. local: its column in the slice.
  __device__ __forceinline__ float logit_of_label(int row, int64_t label, int local) const {
    const int64_t at = row * args.student_stride + label;
    const float logit = load_as<float>(args.student, at, args.logits_type);
    if constexpr (kCaps<kMode>) { // it is capped as its column is, with the logits that share the branch
      const int other = (local ^ 1) - local;
      const auto pair_of = [&](const void* logits, int64_t first, float(&z)[kVector]) {
        const float second =
            local + other < existing ? load_as<float>(logits, first + other, args.logits_type) : -INFINITY;
        z[0] = z[2] = load_as<float>(logits, first, args.logits_type);
        z[1] = z[3] = second;
      };
      float zs[kVector];
      float zt[kVector] = {};
      float xs[kVector];
      float xt[kVector];
      pair_of(args.student, at, zs);
      if constexpr (kTeacher) {
        pair_of(args.teacher, row * args.teacher_stride + label, zt);
      }
      softcap_exponents<kTeacher>(c, zs, zt, 0.0F, 0.0F, xs, xt);
      return (local % kVector < Softcap::kPair ? xs[0] : xs[Softcap::kPair]) * kLn2<float>;
    }
    return logit;
  }

  // Merges a side's parts of the warps: the student's in the lower half of the warp, the teacher's in the upper one.
  __device__ __forceinline__ float4 part_of_block(int parity) const {
    const SidePartial part = slots.stats_of_warp[parity][lane / 16][lane % 16];
    const float max = half_max(part.max, lane);
    // The workers rounded the base times to_log2; this corrects it once for all columns.
    const float rounding = kSubtracts ? 0.0F : fmaf(part.base, c.to_log2, -(part.base * c.to_log2));
    const bool none = max == -INFINITY; // the sums are 0, or NaN where a logit is NaN
    const float sum = half_sum(part.sum * (none ? 1.0F : row_exp2((part.base - max) * c.to_log2 - rounding)));
    float unit_sum = 0;
    if (kSubtracts && !c.unit_temperature) {
      unit_sum = half_sum(part.unit_sum * (none ? 1.0F : row_exp2((part.base - max) * kLog2E<float>)));
    }
    return make_float4(max, sum, unit_sum, max);
  }

  // The workers wait for the normalisers. With kUsesQa, the factors follow with the mean.
  __device__ __forceinline__ void hand_out_row(int parity, float weight) const {
    const SidePartial part = slots.stats_of_block[parity][lane / 16][lane % 16];
    SideSums<float> all;
    all.max = half_max(part.max, lane);
    all.sum = half_sum(scaled_to(part.sum, part.max, all.max, c.to_log2));
    if (kSubtracts && !c.unit_temperature) {
      all.unit_sum = half_sum(scaled_to(part.unit_sum, part.max, all.max, kLog2E<float>));
    }
    const SideStats<float> mine = side_stats(all, c);
    RowNumbers& row = slots.row[parity];
    if (lane == 0) {
      row.student = mine;
    } else if (lane == 16) {
      row.teacher = kTeacher ? mine : SideStats<float>{};
    }
    const auto hand_out_factors = [&] {
      const float other_lse = __shfl_xor_sync(kAllLanes, mine.lse, 16);
      if (lane == 0) {
        row.factors = row_factors(c, mine.lse, kTeacher ? other_lse : 0.0F, weight);
      }
    };
    if constexpr (kUsesQa<kDivergence>) {
      warp_arrive(slots.row_ready + parity, lane);
      hand_out_factors();
    } else {
      hand_out_factors();
      warp_arrive(slots.row_ready + parity, lane);
    }
  }

  __device__ __forceinline__ void send_sums(int parity) const {
    const float number = sum_of_parts(slots.numbers_of_warp[parity][lane / 4]);
    const uint32_t barrier = shared_address(slots.sums_full + parity);
    const uint32_t number_slot = shared_address(&slots.numbers_of_block[parity][lane / 4][rank]);
    for (int to = lane % 4; to < cluster_size; to += 4) {
      send(remote_address(number_slot, to), number, remote_address(barrier, to));
    }
    const float below_max = c.label_smoothing > 0 ? sum_of_parts(slots.below_max_of_warp[parity]) : 0.0F;
    const float label_logit = slots.row[parity].label_thread >= 0 ? slots.label[parity].w : 0.0F;
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

  __device__ __forceinline__ void hand_out_mean(int parity) const {
    const float sum_q_a = sum_of_parts(slots.numbers_of_block[parity][SumIndex::kQa]);
    const float sum_q =
        kDivergence == Divergence::kSkewForwardKl ? sum_of_parts(slots.numbers_of_block[parity][SumIndex::kQ]) : 0.0F;
    if (lane == 0) {
      slots.mean[parity] = mean_a<kDivergence>(sum_q_a, sum_q);
    }
    warp_arrive(slots.mean_ready + parity, lane);
  }

  // Returns the sum of 16 numbers, the same in four consecutive lanes.
  __device__ __forceinline__ float sum_of_parts(const float (&parts)[kMaxCluster]) const {
    const float4 four = reinterpret_cast<const float4*>(parts)[lane % 4];
    float sum = (four.x + four.y) + (four.z + four.w);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return sum + __shfl_xor_sync(kAllLanes, sum, 1);
  }
};

#endif

} // namespace distill::losses::cluster
