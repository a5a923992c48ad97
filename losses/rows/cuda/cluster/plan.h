#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Geometry of a launch of the pipelined row kernel.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 4
  int tiles = 0; // of a slice; a tile is 4 columns for each thread
};

constexpr int kClusterThreads = 512;
constexpr int kClusterVector = 4; // columns of a thread in a tile
constexpr int kMinTiles = 5; // that the kernel is compiled for; fewer run as so many
constexpr int kMaxTiles = 8; // at most, of a slice
constexpr int kMaxCluster = 16;

// One function for each way to compile the kernel, all for fp32 or bf16 logits; `stream` is a cudaStream_t. Null or
// what is wrong. "Unit" needs T = 1, no softcap, bias or label smoothing, and JSD, forward or reverse KL, or labels
// alone.
const char* launch_cluster_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_bf16(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);

} // namespace distill::losses
