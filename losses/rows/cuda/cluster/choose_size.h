#pragma once

#include <array>
#include <cstdint>

#include "losses/rows/cuda/cluster/plan.h"

// These functions choose how many blocks share a row in the cluster row kernel.
namespace distill::losses {

// Returns the slices of a row of `vocab` columns. plan.tiles is above kLongTiles where a block cannot hold its slice.
ClusterPlan cluster_plan(int64_t vocab, int cluster_size);

// Returns whether all rows of logits start at multiples of `of` bytes.
bool logits_start_at_multiples(const RowArgs& args, int64_t of);

// Returns the plan of a launch, with how its rows are copied and its gradient is written.
ClusterPlan cluster_plan(const RowArgs& args, int cluster_size);

// The number at index n says how many clusters of n blocks the device runs at once; 0: it runs none.
using ClustersAtOnce = std::array<int, kMaxCluster + 1>;

// The times of a row are in units of the time of a tile, and fitted to measured times.
struct RowTimes {
  double fixed = 3; // the part that does not depend on the number of columns: reductions, and filling the pipeline
  double waits_for_copies = 0; // the part of slices that leave no room to copy ahead
  double least_last_tile = 0; // a last tile with columns for more than one warp takes at least this
};
RowTimes row_times(bool teacher, cluster::Mode mode);

// Returns the time of a row on one cluster.
double row_time(int64_t vocab, int cluster_size, const RowTimes& times);

// Returns the cluster size with the highest throughput, of those whose slices have at most `most_tiles` tiles; of
// equally fast ones the smallest; 0 where there is none.
int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, const RowTimes& times, int most_tiles);

} // namespace distill::losses
