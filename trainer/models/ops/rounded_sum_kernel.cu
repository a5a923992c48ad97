#include "trainer/models/ops/rounded_sum_kernel.h"

#include <algorithm>

#include "trainer/models/ops/device.cuh"

namespace distill::models {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192; // for more elements, each thread loops

// kWide: both pointers and n allow accesses of a whole group.
template <bool kWide>
__global__ __launch_bounds__(kThreads) void rounded_sum(const __grid_constant__ RoundedSumArgs args) {
  const int64_t groups = (args.n + kRoundingGroup - 1) / kRoundingGroup;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; group < groups; group += step) {
    if constexpr (!kWide) {
      add_rounded_group(args, group);
      continue;
    }
    const float4 loaded = reinterpret_cast<const float4*>(args.values)[group];
    float values[kRoundingGroup] = {loaded.x, loaded.y, loaded.z, loaded.w};
    uint16_t bits[kRoundingGroup] = {};
    uint2 packed = args.accumulate ? reinterpret_cast<const uint2*>(args.sum)[group] : make_uint2(0, 0);
    memcpy(bits, &packed, sizeof(packed));
    uint32_t words[kRoundingGroup];
    rounding_words(args.step, args.unit, args.draw, args.first / kRoundingGroup + group, words);
#pragma unroll
    for (int j = 0; j < kRoundingGroup; ++j) {
      const float value = args.accumulate ? widen(bits[j]) + values[j] : values[j];
      bits[j] = round_stochastically(value, words[j] & 0xFFFFU);
    }
    memcpy(&packed, bits, sizeof(packed));
    reinterpret_cast<uint2*>(args.sum)[group] = packed;
  }
}

} // namespace

const char* launch_rounded_sum(const RoundedSumArgs& args, CUstream_st* stream) {
  if (args.n == 0) {
    return nullptr;
  }
  const bool wide = args.n % kRoundingGroup == 0 && reinterpret_cast<uintptr_t>(args.values) % sizeof(float4) == 0 &&
      reinterpret_cast<uintptr_t>(args.sum) % sizeof(uint2) == 0;
  const int64_t groups = ceil_div<int64_t>(args.n, kRoundingGroup);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(groups, kThreads), kMaxBlocks));
  if (wide) {
    rounded_sum<true><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    rounded_sum<false><<<blocks, kThreads, 0, stream>>>(args);
  }
  return launch_problem();
}

} // namespace distill::models
