#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

enum class RowStrategy {
  kAutomatic, // the cluster kernel where it can run, otherwise the streaming kernel
  // A row's logits are spread over the shared memory of a cluster of blocks: one read of the logits. Needs compute
  // capability 9.0, has_cluster_kernel(), and at most 425984 columns (327680 where cluster_mode() is kGeneral).
  kCluster,
  // The kernel makes two passes over the logits, or three where the gradient needs the mean of a. Later passes read
  // from shared memory and L2 what these hold. It takes any device, type and alignment, and up to 2^30 columns.
  kStreaming,
};

struct RowLaunch {
  RowStrategy strategy = RowStrategy::kAutomatic;
  int cluster_size = 0; // blocks to a row: 2 to 16, with kStreaming also 1; 0: automatic
  int shared_bytes = 0; // kStreaming: the most bytes of shared memory for a block; 0: as many as the device has
};

// Queues the rows on `stream` (a cudaStream_t). Returns null, or an error message. no_cuda.cpp, in this folder, stands
// in for builds without CUDA.
const char* launch_rows(const RowArgs& args, void* stream, const RowLaunch& launch = {});

} // namespace distill::losses
