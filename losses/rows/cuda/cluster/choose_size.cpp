#include "losses/rows/cuda/cluster/choose_size.h"

#include <algorithm>
#include <cmath>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/row_alignment.h"

namespace distill::losses {

namespace {

constexpr int64_t kTileColumns = kClusterThreads * kClusterVector;

bool starts_at_multiples(const void* data, int64_t stride_bytes, int64_t of) {
  return data == nullptr ||
      (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(of) == 0 && stride_bytes % of == 0);
}

} // namespace

ClusterPlan cluster_plan(int64_t vocab, int cluster_size) {
  constexpr int64_t kGranule = 8; // bulk copies begin at multiples of 16 bytes
  const int64_t slice = ((vocab + cluster_size - 1) / cluster_size + kGranule - 1) / kGranule * kGranule;
  int64_t tiles = std::max<int64_t>((slice + kTileColumns - 1) / kTileColumns, kMinTiles);
  if (tiles > kMaxTiles && tiles <= kLongTiles) {
    tiles = kLongTiles;
  }
  return {.slice = static_cast<int>(slice), .tiles = static_cast<int>(tiles)};
}

bool logits_start_at_multiples(const RowArgs& args, int64_t of) {
  const int64_t bytes = element_bytes(args.logits_type);
  return starts_at_multiples(args.student, args.student_stride * bytes, of) &&
      starts_at_multiples(args.teacher, args.teacher_stride * bytes, of);
}

ClusterPlan cluster_plan(const RowArgs& args, int cluster_size) {
  ClusterPlan plan = cluster_plan(args.vocab, cluster_size);
  const int64_t gradient_bytes = element_bytes(args.gradient_type);
  const bool aligned = logits_start_at_multiples(args, 16);
  plan.shifted = !aligned && may_start_anywhere(args);
  plan.bulk_copies = aligned || plan.shifted;
  plan.vector_stores =
      starts_at_multiples(args.gradient, args.gradient_stride * gradient_bytes, kClusterVector * gradient_bytes);
  return plan;
}

double row_time(int64_t vocab, int cluster_size, bool teacher) {
  // What does not depend on the number of columns: reductions, and filling the pipeline.
  constexpr double kFixed = 3;
  // Slices that leave no room to copy ahead wait for their copies.
  const double waits_for_copies = teacher ? 3.5 : 2.5;
  const ClusterPlan plan = cluster_plan(vocab, cluster_size);
  // With a teacher a last tile takes as long as a whole one, unless no more than one of the warps has columns in it.
  constexpr double kOneWarp = 32.0 / kClusterThreads;
  const double share = plan.slice / static_cast<double>(kTileColumns);
  const double tiles = teacher && share - std::floor(share) > kOneWarp ? std::ceil(share) : share;
  return kFixed + std::max(tiles, static_cast<double>(kMinTiles)) + (plan.tiles == kLongTiles ? waits_for_copies : 0);
}

int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, bool teacher, int most_tiles) {
  int best = 0;
  double best_cost = 0;
  for (int size = 2; size <= kMaxCluster; ++size) {
    const int clusters = at_once[static_cast<size_t>(size)];
    if (clusters == 0 || cluster_plan(vocab, size).tiles > most_tiles) {
      continue;
    }
    const double cost = row_time(vocab, size, teacher) / clusters;
    if (best == 0 || cost < best_cost) {
      best = size;
      best_cost = cost;
    }
  }
  return best;
}

} // namespace distill::losses
