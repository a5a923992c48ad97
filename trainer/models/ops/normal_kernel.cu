#include "trainer/models/ops/normal_kernel.h"

#include <algorithm>

#include "trainer/models/ops/device.cuh"
#include "trainer/models/ops/normal_math.h"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384; // for larger counts, each thread loops

template <typename T>
__global__ __launch_bounds__(kThreads) void normal(const __grid_constant__ NormalArgs args) {
  const int64_t last = args.first + args.count;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t group = args.first / kNormalGroup + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; group * kNormalGroup < last; group += step) {
    float values[kNormalGroup];
    normal_group(args.key, group, values);
#pragma unroll
    for (int i = 0; i < kNormalGroup; ++i) {
      const int64_t element = group * kNormalGroup + i;
      if (element >= args.first && element < last) {
        static_cast<T*>(args.out)[element - args.first] = from_acc<T>(values[i] * args.scale);
      }
    }
  }
}

} // namespace

const char* launch_normal(const NormalArgs& args, CUstream_st* stream) {
  if (args.count == 0) {
    return nullptr;
  }
  const int64_t groups = args.count / kNormalGroup + 2;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(groups, kThreads), kMaxBlocks));
  with_type(args.type, [&](auto tag) { normal<typename decltype(tag)::type><<<blocks, kThreads, 0, stream>>>(args); });
  return launch_problem();
}

} // namespace distill::models
