#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Geometry of a launch of the cluster row kernel.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 4
  int tiles = 0; // of a slice; a tile is 4 columns for each thread
};

constexpr int kClusterThreads = 512;
constexpr int kClusterVector = 4; // columns of a thread in a tile
constexpr int kMinTiles = 5; // of a slice: the kernel is compiled for 5 to 8 tiles, and fewer tiles run as 5
constexpr int kMaxTiles = 8; // of a slice
constexpr int kMaxCluster = 16;

// Queue the kernel on `stream`, a cudaStream_t; each returns null, or an error message. Each compiles
// the kernel for one kind of call: "unit" for fp32 logits at T = 1 without softcap, bias or label smoothing, with JSD,
// forward or reverse KL, or labels alone; "general" for any fp32 logits; "bf16" for any bf16 logits.
const char* launch_cluster_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_bf16(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);

} // namespace distill::losses
