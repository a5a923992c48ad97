#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Geometry of a launch of the cluster row kernel.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 8
  int tiles = 0; // of a slice; a tile is 4 columns for each worker thread
  bool bulk_copies = true; // logits' rows start at multiples of 16 bytes; otherwise of 4 bytes, and are copied by those
  bool vector_stores = true; // the gradient's rows start where a thread can write its 4 columns at once
};

constexpr int kClusterThreads = 512; // worker threads of a block; one more warp reduces
constexpr int kClusterVector = 4; // columns of a thread in a tile
constexpr int kMinTiles = 5; // of a slice: the kernel is compiled for 5 to 10 tiles, and fewer tiles run as 5
constexpr int kMaxTiles = 10; // of a slice
constexpr int kMaxRegisterTiles = 7; // of which a and q are kept in registers
constexpr int kMaxCluster = 16;

// Queue the kernel on `stream`, a cudaStream_t; each returns null, or an error message. Each compiles
// the kernel for one kind of call: "unit" for fp32 logits at T = 1 without softcap, bias or label smoothing, with JSD,
// forward or reverse KL, or labels alone; "capped" for the same with a softcap on one side or both; "general" for any
// fp32 logits; "bf16" for any bf16 logits.
const char* launch_cluster_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_capped(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
const char* launch_cluster_bf16(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);

// How many clusters of this size the current device runs at once, with or without a teacher; 0 where it runs none.
int clusters_at_once(bool teacher, int cluster_size);

} // namespace distill::losses
