// This file sets the attributes of a launch in clusters and asks how many clusters a device runs at once. A kernel's
// own attributes, such as its shared memory, belong to one device: a process that uses several sets them on each.
#pragma once

#include <cuda_runtime.h>

namespace distill::losses::cluster {

constexpr int kMaxDevices = 64; // of a process

// Returns the current device; -1 where there is none, or one beyond kMaxDevices.
inline int current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess && device < kMaxDevices ? device : -1;
}

struct ClusterLaunch {
  ClusterLaunch(int threads, int shared_bytes, int cluster_size, void* stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(cluster_size));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete; // the configuration points at the attribute
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};
};

// Allows the kernel its shared memory and its cluster size on the current device. Returns 0 where that cannot run it.
template <typename Kernel>
int max_active_clusters(Kernel kernel, int threads, int shared_bytes, int cluster_size) {
  int clusters = 0;
  const ClusterLaunch launch(threads, shared_bytes, cluster_size, nullptr);
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) != cudaSuccess ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return clusters;
}

} // namespace distill::losses::cluster
