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
  plan.shifted = !aligned && args.logits_type == ElementType::kBFloat16;
  plan.bulk_copies = aligned || plan.shifted;
  plan.vector_stores =
      starts_at_multiples(args.gradient, args.gradient_stride * gradient_bytes, kClusterVector * gradient_bytes);
  return plan;
}

RowTimes row_times(bool teacher, cluster::Mode mode) {
  using cluster::Mode;
  if (!teacher) {
    return {.waits_for_copies = 2.5};
  }
  switch (mode) { // the less there is to compute for a column, the more a wait counts
    case Mode::kUnitLoss:
      return {.waits_for_copies = 6, .least_last_tile = 0.8};
    case Mode::kCappedLoss:
      return {.waits_for_copies = 6};
    default:
      return {.waits_for_copies = 3.5};
  }
}

double row_time(int64_t vocab, int cluster_size, const RowTimes& times) {
  const ClusterPlan plan = cluster_plan(vocab, cluster_size);
  constexpr double kOneWarp = 32.0 / kClusterThreads;
  const double share = plan.slice / static_cast<double>(kTileColumns);
  const double last = share - std::floor(share);
  const double tiles = last > kOneWarp ? std::floor(share) + std::max(last, times.least_last_tile) : share;
  return times.fixed + std::max(tiles, static_cast<double>(kMinTiles)) +
      (plan.tiles == kLongTiles ? times.waits_for_copies : 0);
}

int best_cluster_size(int64_t vocab, const ClustersAtOnce& at_once, const RowTimes& times, int most_tiles) {
  int best = 0;
  double best_cost = 0;
  for (int size = 2; size <= kMaxCluster; ++size) {
    const int clusters = at_once[static_cast<size_t>(size)];
    if (clusters == 0 || cluster_plan(vocab, size).tiles > most_tiles) {
      continue;
    }
    const double cost = row_time(vocab, size, times) / clusters;
    if (best == 0 || cost < best_cost) {
      best = size;
      best_cost = cost;
    }
  }
  return best;
}

} // namespace distill::losses
