#pragma once

#include <array>
#include <cstdint>

#include "losses/rows/cuda/cluster/plan.h"

// How many blocks share a row in the cluster row kernel.
namespace distill::losses {

// The slices of a row of `vocab` columns. plan.tiles is above kLongTiles where a block cannot hold its slice.
ClusterPlan cluster_plan(int64_t vocab, int cluster_size);

// Whether all rows of logits start at multiples of `of` bytes.
bool logits_start_at_multiples(const RowArgs& args, int64_t of);

// The plan of a launch, with how its rows are copied and its gradient is written.
ClusterPlan cluster_plan(const RowArgs& args, int cluster_size);

// How many clusters of each size the device runs at once, the index; 0 where it runs none.
using ClustersAtOnce = std::array<int, kMaxCluster + 1>;

// The time of a row on one cluster, in units of what a tile takes (fitted to measured times).
double row_time(int64_t vocab, int cluster_size, bool teacher);

// The cluster size with the highest throughput, of those whose slices have at most `most_tiles` tiles, and of several
// as good ones the smallest; 0: none.
int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, bool teacher, int most_tiles);

} // namespace distill::losses
