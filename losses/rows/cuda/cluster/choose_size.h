#pragma once

#include <array>
#include <cstdint>

#include "losses/rows/cuda/cluster/plan.h"

// How many blocks share a row in the cluster row kernel.
namespace distill::losses {

// The slices of a row of `vocab` columns. plan.tiles is above kMaxTiles where a block cannot hold its slice.
ClusterPlan cluster_plan(int64_t vocab, int cluster_size);

// Whether all rows of logits start at multiples of `of` bytes.
bool logits_start_at_multiples(const RowArgs& args, int64_t of);

// The plan of a launch, with how its rows are copied and its gradient is written.
ClusterPlan cluster_plan(const RowArgs& args, int cluster_size);

// How many clusters of each size the device runs at once, the index; 0 where it runs none.
using ClustersAtOnce = std::array<int, kMaxCluster + 1>;

// The cluster size with the highest throughput; 0 where no size holds the row. A row takes as long as its tiles and
// what does not depend on their number, which costs about as much as `fixed_tiles` (docs/loss_head.md).
int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, double fixed_tiles = 3);

} // namespace distill::losses
