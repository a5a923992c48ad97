#pragma once

#include "losses/rows.h"

namespace distill::losses {

// Geometry of a cluster launch.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 8
  int vectors = 0; // tiles in a slice; a tile is 4 columns for each thread
  int stages = 0; // tiles that shared memory holds
};

enum class RowMode {
  kJsd,
  kForwardKl,
  kReverseKl,
  kHard, // no teacher
  kGeneral, // any divergence, temperature and softcap; with a teacher
  kGeneralHard
};

constexpr int kMaxCluster = 16;

// One file for each number of threads; `stream` is a cudaStream_t. Null or what is wrong.
const char* launch_cluster_256(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, RowMode mode, void* stream);
const char* launch_cluster_512(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, RowMode mode, void* stream);

} // namespace distill::losses
