#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

// Geometry of a launch of the cluster row kernel.
struct ClusterPlan {
  int slice = 0; // columns that a block holds, a multiple of 8
  int tiles = 0; // of a slice; a tile is 4 columns for each worker thread
  bool bulk_copies = true; // otherwise rows start at multiples of 4 bytes alone, and are copied by those
  bool shifted = false; // bf16 rows do not all start at multiples of 16 bytes: copies begin up to 14 bytes before them
  bool vector_stores = true; // the gradient's rows start where a thread can write its 4 columns at once
};

constexpr int kClusterThreads = 512; // worker threads of a block; two more warps reduce and copy
constexpr int kClusterVector = 4; // columns of a thread in a tile
// Tiles of a slice: the kernel is compiled for 5 to 10 tiles and for 13. Fewer than 5 run as 5, 11 and 12 as 13.
constexpr int kMinTiles = 5;
constexpr int kMaxTiles = 10;
constexpr int kLongTiles = 13; // such a slice fills the shared memory, which leaves no room to copy ahead
constexpr int kMaxRegisterTiles = 7; // of which a and q are kept in registers
constexpr int kMaxCluster = 16;

namespace cluster {

// What happens to a logit before the mathematics of its row, and which metrics of the row are computed.
enum class Mode {
  kUnit, // nothing: T = 1, no bias, softcap or label smoothing
  kTempered, // a temperature, otherwise as kUnit
  kCapped, // a softcap on one side or both, otherwise as kUnit
  kCappedTempered, // both
  kUnitLoss, // as kUnit, and of the metrics only the loss is asked for (MetricSet::kLoss)
  kCappedLoss, // with a softcap on every side, likewise
  kGeneral,
};

// The most tiles of a slice for which the kernel is compiled.
constexpr int most_tiles(Mode mode) {
  return mode == Mode::kGeneral ? kMaxTiles : kLongTiles;
}

} // namespace cluster

// Queue the kernel on `stream`, a cudaStream_t; each returns null, or an error message. Each is compiled for one mode
// (cluster_mode() says which a call takes): the general one for all divergences, unit_skew for the skew KLs and total
// variation, the others for JSD, forward and reverse KL, and labels alone. Logits are fp32, or bf16 where the name says
// so.
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
LaunchCluster launch_cluster_shifted_unit; // of rows that ClusterPlan::shifted says
LaunchCluster launch_cluster_shifted_tempered;

// How many clusters of this size the current device runs at once, with or without a teacher; 0 where it runs none.
int clusters_at_once(bool teacher, int cluster_size);

} // namespace distill::losses
