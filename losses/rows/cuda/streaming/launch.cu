// Which streaming kernel runs, with how many blocks to a row.
#include "losses/rows/cuda/cluster/occupancy.cuh"
#include "losses/rows/cuda/streaming/kernel.cuh"
#include "losses/rows/cuda/streaming/plan.h"

namespace distill::losses {

namespace {

// Blocks to a row. The rows in flight must stay in L2 from the first pass to the third: half of L2 is for them.
int blocks_of_row(const RowArgs& args, int element_bytes) {
  int device = 0;
  int major = 0;
  int multiprocessors = 0;
  int l2_bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device) != cudaSuccess || major < 9) {
    return 1;
  }
  constexpr int kMaxPortable = 8; // blocks that every device with clusters runs in one
  const int64_t row_bytes = args.vocab * element_bytes * (args.teacher == nullptr ? 1 : 2);
  int blocks = 1;
  while (blocks < kMaxPortable && row_bytes * multiprocessors * 2 / blocks > l2_bytes / 2) {
    blocks *= 2;
  }
  return blocks;
}

template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
const char* launch_as(const RowArgs& args, cudaStream_t stream) {
  const auto kernel = streaming::rows<T, Logit, kTeacher, kVector, Call>;
  const int size = blocks_of_row(args, sizeof(Logit));
  const int64_t slice = streaming::slice_columns(args.vocab, size, kVector);
  const auto blocks = static_cast<unsigned>(args.num_rows * size);
  if (size == 1) {
    kernel<<<blocks, streaming::kThreads, 0, stream>>>(args, row_constants<T>(args), size, slice);
    return launch_error();
  }
  cluster::ClusterLaunch launch(streaming::kThreads, 0, size, stream);
  launch.config.gridDim = dim3(blocks);
  cudaLaunchKernelEx(&launch.config, kernel, args, row_constants<T>(args), size, slice);
  return launch_error();
}

template <typename T, typename Logit>
const char* launch(const RowArgs& args, cudaStream_t stream) {
  return streaming::with_kernel<Logit>(args, [&](auto teacher, auto vector, auto call) {
    return launch_as<T, Logit, decltype(teacher)::value, decltype(vector)::value, decltype(call)>(args, stream);
  });
}

} // namespace

const char* launch_rows_streaming(const RowArgs& args, cudaStream_t stream) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return launch<float, float>(args, stream);
    case ElementType::kBFloat16:
      return launch<float, __nv_bfloat16>(args, stream);
    case ElementType::kFloat64:
      return launch<double, double>(args, stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
