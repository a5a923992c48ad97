#include "trainer/models/ops/dropout_kernel.h"

#include <algorithm>

#include "trainer/models/ops/device.cuh"

namespace distill::models {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 8192; // for more elements, each thread loops

template <typename T>
__global__ __launch_bounds__(kThreads) void dropout(const __grid_constant__ DropoutArgs args) {
  using acc_t = acc_type<T>;
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  const acc_t scale = static_cast<acc_t>(args.scale);
  const int64_t begin = args.first / kDropoutGroup;
  const int64_t end = (args.first + args.n + kDropoutGroup - 1) / kDropoutGroup;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t group = begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; group < end; group += step) {
    bool stays[kDropoutGroup];
    dropout_group(args, group, stays);
#pragma unroll
    for (int j = 0; j < kDropoutGroup; ++j) {
      const int64_t i = group * kDropoutGroup + j - args.first;
      if (i >= 0 && i < args.n) {
        out[i] = from_acc<T>(stays[j] ? to_acc(x[i]) * scale : acc_t{0});
      }
    }
  }
}

} // namespace

const char* launch_dropout(const DropoutArgs& args, CUstream_st* stream) {
  if (args.n == 0) {
    return nullptr;
  }
  const int64_t groups = args.n / kDropoutGroup + 2; // the first and the last may be cut
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(groups, kThreads), kMaxBlocks));
  with_type(args.type, [&](auto tag) { dropout<typename decltype(tag)::type><<<blocks, kThreads, 0, stream>>>(args); });
  return launch_problem();
}

} // namespace distill::models
