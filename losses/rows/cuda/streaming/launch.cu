// This file launches the streaming row kernel that plan.h names.
#include <algorithm>
#include <array>
#include <memory>
#include <mutex>

#include "losses/rows/cuda/cluster/occupancy.cuh"
#include "losses/rows/cuda/launch.h"
#include "losses/rows/cuda/streaming/choose_blocks.h"
#include "losses/rows/cuda/streaming/kernel.cuh"

namespace distill::losses {

namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, name, device) == cudaSuccess ? value : 0;
}

// Returns the shared memory of a block when `blocks` of them lie on a multiprocessor. The driver keeps some for each.
int shared_bytes_of_block(int device, int blocks) {
  const int of_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  const int reserved = attribute(cudaDevAttrReservedSharedMemoryPerBlock, device);
  return std::min(of_multiprocessor / blocks - reserved, attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
}

template <typename T, bool kTeacher, typename Call, typename Kernel>
streaming::Occupancy occupancy_of(Kernel kernel, int device, int shared_bytes) {
  using G = streaming::Geometry<T, kTeacher, Call>;
  streaming::Occupancy found;
  found.slot_bytes = (shared_bytes - streaming::partials_bytes<T, Call>()) / G::kGroupBytes * G::kGroupBytes;
  found.l2_bytes = attribute(cudaDevAttrL2CacheSize, device);
  // If a row has several blocks, they are a cluster.
  for (int blocks = 2; blocks <= streaming::kMaxBlocks && attribute(cudaDevAttrClusterLaunch, device) != 0; ++blocks) {
    found.rows_at_once[static_cast<size_t>(blocks)] =
        cluster::max_active_clusters(kernel, G::kThreads, shared_bytes, blocks);
  }
  int blocks_at_once = 0;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks_at_once, kernel, G::kThreads, static_cast<size_t>(shared_bytes));
  found.rows_at_once[1] = blocks_at_once * attribute(cudaDevAttrMultiProcessorCount, device);
  cudaGetLastError();
  return found;
}

template <typename T, typename Logit, bool kTeacher, int kVector, typename Call>
const char* launch_as(const RowArgs& args, const RowLaunch& launch, cudaStream_t stream) {
  using G = streaming::Geometry<T, kTeacher, Call>;
  const auto kernel = streaming::rows<T, Logit, kTeacher, kVector, Call>;
  const int device = cluster::current_device();
  if (device < 0) {
    return "the streaming row kernel needs a CUDA device";
  }
  const int most_bytes = shared_bytes_of_block(device, G::kBlocksAtOnce);
  // The device is asked once, which also sets the kernel's attributes there.
  static std::array<std::once_flag, cluster::kMaxDevices> asked;
  static std::array<std::unique_ptr<streaming::Occupancy>, cluster::kMaxDevices> known;
  auto& occupancy = known[static_cast<size_t>(device)];
  std::call_once(asked[static_cast<size_t>(device)], [&] {
    occupancy = std::make_unique<streaming::Occupancy>(occupancy_of<T, kTeacher, Call>(kernel, device, most_bytes));
  });
  streaming::Plan plan;
  plan.blocks = launch.cluster_size;
  if (plan.blocks == 0) {
    const bool has_gradient = args.gradient != nullptr && args.gradient != args.student; // not in place
    const streaming::RowBytes row{
        .logits = args.vocab * static_cast<int64_t>(sizeof(T)) * (kTeacher ? 2 : 1),
        .gradient = has_gradient ? args.vocab * element_bytes(args.gradient_type) : 0};
    // AnyCall takes longer to compute a column than to read its logits from memory: one block has a row.
    const int64_t most = Call::kPlain ? G::most_groups(args.vocab, 1) : 1;
    const int64_t of_grid = INT32_MAX / args.num_rows;
    plan.blocks = streaming::best_blocks(*occupancy, row, static_cast<int>(std::min(most, of_grid)));
  } else if (plan.blocks > streaming::kMaxBlocks || occupancy->rows_at_once[static_cast<size_t>(plan.blocks)] == 0) {
    return "the device does not run the streaming row kernel with so many blocks to a row";
  }
  const int limit = launch.shared_bytes == 0 ? most_bytes : std::min(launch.shared_bytes, most_bytes);
  const int slots = (limit - streaming::partials_bytes<T, Call>()) / G::kGroupBytes;
  if (slots < 1) {
    return "the streaming row kernel needs more shared memory than a block may have";
  }
  plan.slots = std::clamp(G::most_groups(args.vocab, plan.blocks), 1, slots);
  const int shared_bytes = streaming::partials_bytes<T, Call>() + plan.slots * G::kGroupBytes;
  cluster::ClusterLaunch config(G::kThreads, shared_bytes, plan.blocks, stream);
  config.config.gridDim = dim3(static_cast<unsigned>(args.num_rows * plan.blocks));
  config.config.numAttrs = plan.blocks > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config.config, kernel, args, row_constants<T>(args), plan);
  return launch_error();
}

template <typename T, typename Logit>
const char* launch_of(const RowArgs& args, const RowLaunch& launch, cudaStream_t stream) {
  return streaming::with_kernel<Logit>(args, [&](auto teacher, auto vector, auto call) {
    return launch_as<T, Logit, decltype(teacher)::value, decltype(vector)::value, decltype(call)>(args, launch, stream);
  });
}

} // namespace

const char* launch_rows_streaming(const RowArgs& args, const RowLaunch& launch, cudaStream_t stream) {
  switch (args.logits_type) {
    case ElementType::kFloat32:
      return launch_of<float, float>(args, launch, stream);
    case ElementType::kBFloat16:
      return launch_of<float, __nv_bfloat16>(args, launch, stream);
    case ElementType::kFloat64:
      return launch_of<double, double>(args, launch, stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
