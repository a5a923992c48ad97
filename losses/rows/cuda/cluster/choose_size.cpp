#include "losses/rows/cuda/cluster/choose_size.h"

#include <algorithm>

namespace distill::losses {

ClusterPlan cluster_plan(int64_t vocab, int cluster_size) {
  constexpr int64_t kTileColumns = kClusterThreads * kClusterVector;
  constexpr int64_t kGranule = 8; // bulk copies begin at multiples of 16 bytes
  const int64_t slice = ((vocab + cluster_size - 1) / cluster_size + kGranule - 1) / kGranule * kGranule;
  const int64_t tiles = std::max<int64_t>((slice + kTileColumns - 1) / kTileColumns, kMinTiles);
  return {.slice = static_cast<int>(slice), .tiles = static_cast<int>(tiles)};
}

int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, double fixed_tiles) {
  int best = 0;
  double best_cost = 0;
  for (int size = 2; size <= kMaxCluster; ++size) {
    const int clusters = at_once[static_cast<size_t>(size)];
    const int tiles = cluster_plan(vocab, size).tiles;
    if (clusters == 0 || tiles > kMaxTiles) {
      continue;
    }
    const double cost = (fixed_tiles + tiles) / clusters;
    if (best == 0 || cost < best_cost) {
      best = size;
      best_cost = cost;
    }
  }
  return best;
}

} // namespace distill::losses
