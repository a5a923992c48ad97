#include "trainer/models/ops/group_gradient_kernel.h"

#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8; // of a thread: 16 bytes of bf16

// A block moves kThreads * kElements elements of one group.
template <typename T, bool accumulate>
__global__ __launch_bounds__(kThreads) void group_gradient(
    const __grid_constant__ GroupGradientArgs args, int64_t tiles) {
  constexpr int kPack = kAccessBytes / sizeof(T);
  const int64_t group = blockIdx.x / tiles;
  const int64_t place = (blockIdx.x % tiles * kThreads + threadIdx.x) * kElements;
  const bool empty = args.ends[group] == (group == 0 ? 0 : args.ends[group - 1]);
  if (place >= args.size || (empty && accumulate)) {
    return;
  }
  Pack<__nv_bfloat16, kElements> part{};
  if (!empty) {
    part =
        load_pack<__nv_bfloat16, kElements>(static_cast<const __nv_bfloat16*>(args.parts) + group * args.size + place);
  }
  T* grads = static_cast<T*>(args.grads) + group * args.size + place;
#pragma unroll
  for (int first = 0; first < kElements; first += kPack) {
    Pack<T, kPack> out{};
    if constexpr (accumulate) {
      out = load_pack<T, kPack>(grads + first);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      out.set(i, accumulate ? out[i] + part[first + i] : part[first + i]);
    }
    store_pack(grads + first, out);
  }
}

template <typename T>
void launch(const GroupGradientArgs& args, CUstream_st* stream) {
  const int64_t tiles = ceil_div<int64_t>(args.size, kThreads * kElements);
  const dim3 grid(static_cast<unsigned>(args.groups * tiles));
  (args.accumulate ? group_gradient<T, true> : group_gradient<T, false>)<<<grid, kThreads, 0, stream>>>(args, tiles);
}

} // namespace

const char* launch_group_gradient(const GroupGradientArgs& args, CUstream_st* stream) {
  args.type == ElementType::kFloat32 ? launch<float>(args, stream) : launch<__nv_bfloat16>(args, stream);
  return launch_problem();
}

} // namespace distill::models
