// Which row kernel runs, and in which geometry.
#include "losses/rows/cuda/launch.h"

#include <algorithm>

#include "losses/rows/cuda/cluster/plan.h"
#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

namespace {

bool aligned(const void* data, int64_t stride, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * bytes % 16 == 0;
}

int logit_bytes(const RowArgs& args) {
  return args.logits_type == ElementType::kFloat32 ? 4 : 2;
}

bool is_unit(const RowArgs& args) {
  const LossOptions& o = args.options;
  if (args.logits_type != ElementType::kFloat32 || o.temperature != 1 || o.student_softcap > 0 ||
      o.teacher_softcap > 0 || o.label_smoothing > 0 || args.student_bias != nullptr || args.teacher_bias != nullptr) {
    return false;
  }
  const Divergence divergence = effective_divergence(o);
  return args.teacher == nullptr || divergence == Divergence::kJsd || divergence == Divergence::kForwardKl ||
      divergence == Divergence::kReverseKl;
}

ClusterPlan plan_for(int64_t vocab, int cluster_size) {
  constexpr int kTileColumns = kClusterThreads * kClusterVector;
  ClusterPlan plan;
  plan.slice = static_cast<int>(((vocab + cluster_size - 1) / cluster_size + 3) / 4 * 4);
  plan.tiles = std::max((plan.slice + kTileColumns - 1) / kTileColumns, kMinTiles);
  return plan;
}

// The cluster size with the highest throughput. A row takes as long as its tiles and its reductions, which cost about
// seven tiles (docs/loss_head.md); as many clusters run at once as fit into groups of 16 multiprocessors. 0 where no
// size holds the row.
int automatic_cluster(int64_t vocab) {
  int best = 0;
  double best_cost = 0;
  for (int size = 2; size <= kMaxCluster; ++size) {
    const ClusterPlan plan = plan_for(vocab, size);
    const double cost = static_cast<double>(7 + plan.tiles) / (16 / size);
    if (plan.tiles <= kMaxTiles && (best == 0 || cost < best_cost)) {
      best = size;
      best_cost = cost;
    }
  }
  return best;
}

const char* why_not_cluster(const RowArgs& args) {
  if (args.logits_type == ElementType::kFloat64) {
    return "fp64 logits";
  }
  if (args.vocab > INT32_MAX / 2) {
    return "the vocabulary is too large";
  }
  const int64_t gradient_bytes = args.gradient_type == ElementType::kBFloat16 ? 2 : 4;
  if (!aligned(args.student, args.student_stride, logit_bytes(args)) ||
      (args.teacher != nullptr && !aligned(args.teacher, args.teacher_stride, logit_bytes(args))) ||
      (args.gradient != nullptr && !aligned(args.gradient, args.gradient_stride, gradient_bytes))) {
    return "rows that do not start at multiples of 16 bytes";
  }
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9) {
    return "the device is not of compute capability 9";
  }
  return nullptr;
}

const char* launch_rows_cluster(const RowArgs& args, void* stream, int cluster_size) {
  const ClusterPlan plan = plan_for(args.vocab, cluster_size);
  if (cluster_size < 2 || cluster_size > kMaxCluster || plan.tiles > kMaxTiles) {
    return "the cluster row kernel cannot hold a row of this width with this cluster size";
  }
  if (is_unit(args)) {
    return launch_cluster_unit(args, plan, cluster_size, stream);
  }
  return args.logits_type == ElementType::kFloat32 ? launch_cluster_general(args, plan, cluster_size, stream)
                                                   : launch_cluster_bf16(args, plan, cluster_size, stream);
}

} // namespace

const char* launch_rows(const RowArgs& args, void* stream, const RowLaunch& launch) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  if (args.num_rows > INT32_MAX) {
    return "more than 2^31 rows";
  }
  if (launch.strategy != RowStrategy::kStreaming) {
    const char* problem = why_not_cluster(args);
    const int size = launch.cluster_size == 0 ? automatic_cluster(args.vocab) : launch.cluster_size;
    if (problem == nullptr && size > 0) {
      return launch_rows_cluster(args, stream, size);
    }
    if (launch.strategy == RowStrategy::kCluster) {
      return problem == nullptr ? "the cluster row kernel cannot hold a row of this width" : problem;
    }
  }
  return launch_rows_streaming(args, static_cast<cudaStream_t>(stream));
}

} // namespace distill::losses
