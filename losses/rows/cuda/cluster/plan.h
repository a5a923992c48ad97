#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// A ClusterPlan is the geometry of a launch of the cluster row kernel.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 8
  int tiles = 0; // tiles of a slice; a tile is 4 columns for each worker thread
  bool bulk_copies = true; // false: rows start at multiples of 4 bytes alone, and are copied by those
  bool shifted = false; // bf16 rows do not all start at multiples of 16 bytes: copies begin up to 14 bytes before them
  bool vector_stores = true; // the gradient's rows start where a thread can write its 4 columns at once
};

constexpr int kClusterThreads = 512; // worker threads of a block; two more warps reduce and copy
constexpr int kClusterVector = 4; // columns that a thread has in a tile
// The kernel is compiled for slices of 5 to 10 tiles and of 13. Fewer than 5 run as 5, 11 and 12 as 13.
constexpr int kMinTiles = 5;
constexpr int kMaxTiles = 10;
constexpr int kLongTiles = 13; // such a slice fills the shared memory, which leaves no room to copy ahead
constexpr int kMaxRegisterTiles = 7; // a and q of at most this many tiles are kept in registers
constexpr int kMaxCluster = 16;

namespace cluster {

// A mode says what happens to a logit before the mathematics of its row, and which metrics of the row are computed.
enum class Mode {
  kUnit, // nothing: T = 1, no bias, softcap or label smoothing
  kTempered, // a temperature, otherwise as kUnit
  kCapped, // a softcap on one side or both, otherwise as kUnit
  kCappedTempered, // a temperature and a softcap on one side or both, otherwise as kUnit
  kUnitLoss, // as kUnit, and of the metrics only the loss is asked for (MetricSet::kLoss)
  kCappedLoss, // as kUnitLoss, with a softcap on every side
  kGeneral,
};

// Returns the most tiles of a slice for which the kernel is compiled.
constexpr int most_tiles(Mode mode) {
  return mode == Mode::kGeneral ? kMaxTiles : kLongTiles;
}

} // namespace cluster

// These functions queue the kernel on `stream`, a cudaStream_t, and return null, or an error message. Each is compiled
// for one mode, that of cluster_mode(): the general one for all divergences, unit_skew for the skew KLs and total
// variation, the others for JSD, forward and reverse KL, and labels alone. Logits are bf16 where the name has bf16 or
// shifted, and otherwise fp32.
using LaunchCluster = const char*(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream);
LaunchCluster launch_cluster_unit;
LaunchCluster launch_cluster_unit_skew;
LaunchCluster launch_cluster_tempered;
LaunchCluster launch_cluster_capped;
LaunchCluster launch_cluster_capped_tempered;
LaunchCluster launch_cluster_unit_loss;
LaunchCluster launch_cluster_capped_loss;
LaunchCluster launch_cluster_general;
LaunchCluster launch_cluster_bf16_unit;
LaunchCluster launch_cluster_bf16_tempered;
LaunchCluster launch_cluster_shifted_unit; // for rows of ClusterPlan::shifted
LaunchCluster launch_cluster_shifted_tempered;

// Returns how many clusters of this size the current device runs at once, with or without a teacher; 0 where none.
int clusters_at_once(bool teacher, int cluster_size);

} // namespace distill::losses
