// This file chooses which row kernel runs, and in which geometry.
#include "losses/rows/cuda/launch.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/cuda/cluster/choose_size.h"
#include "losses/rows/cuda/cluster/occupancy.cuh"
#include "losses/rows/cuda/launch_limits.h"
#include "losses/rows/cuda/streaming/launch.h"

namespace distill::losses {

namespace {

LaunchCluster* cluster_kernel(const RowArgs& args, bool shifted) {
  const bool fp32 = args.logits_type == ElementType::kFloat32;
  switch (cluster_mode(args)) {
    case cluster::Mode::kUnit:
      if (fp32) {
        return is_usual(args) ? launch_cluster_unit : launch_cluster_unit_skew;
      }
      return shifted ? launch_cluster_shifted_unit : launch_cluster_bf16_unit;
    case cluster::Mode::kTempered:
      if (fp32) {
        return launch_cluster_tempered;
      }
      return shifted ? launch_cluster_shifted_tempered : launch_cluster_bf16_tempered;
    case cluster::Mode::kCapped:
      return launch_cluster_capped;
    case cluster::Mode::kCappedTempered:
      return launch_cluster_capped_tempered;
    case cluster::Mode::kUnitLoss:
      return launch_cluster_unit_loss;
    case cluster::Mode::kCappedLoss:
      return launch_cluster_capped_loss;
    case cluster::Mode::kGeneral:
      break;
  }
  return launch_cluster_general;
}

// Returns the cluster size of the rows on the current device, which is asked once; 0: none.
int automatic_cluster(const RowArgs& args) {
  struct Known {
    std::once_flag asked;
    std::array<ClustersAtOnce, 2> at_once{}; // without and with a teacher
  };
  static std::array<Known, cluster::kMaxDevices> devices;
  const int device = cluster::current_device();
  if (device < 0) {
    return 0;
  }
  Known& known = devices[static_cast<size_t>(device)];
  std::call_once(known.asked, [&known] {
    for (size_t side = 0; side < known.at_once.size(); ++side) {
      for (int size = 2; size <= kMaxCluster; ++size) {
        known.at_once[side][static_cast<size_t>(size)] = clusters_at_once(/*teacher=*/side == 1, size);
      }
    }
  });
  const bool teacher = args.teacher != nullptr;
  const cluster::Mode mode = cluster_mode(args);
  return best_cluster_size(
      args.vocab, known.at_once[teacher ? 1 : 0], row_times(teacher, mode), cluster::most_tiles(mode));
}

const char* why_not_cluster(const RowArgs& args) {
  if (!has_cluster_kernel(args)) {
    return "fp64 logits, or bf16 ones of a call that it is not compiled for";
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
  const ClusterPlan plan = cluster_plan(args, cluster_size);
  if (cluster_size < 2 || cluster_size > kMaxCluster || plan.tiles > cluster::most_tiles(cluster_mode(args))) {
    return "the cluster row kernel cannot hold a row of this width with this cluster size";
  }
  return cluster_kernel(args, plan.shifted)(args, plan, cluster_size, stream);
}

} // namespace

const char* launch_rows(const RowArgs& args, void* stream, const RowLaunch& launch) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  if (const char* problem = beyond_limits(args.num_rows, args.vocab); problem != nullptr) {
    return problem;
  }
  if (launch.strategy != RowStrategy::kStreaming) {
    const char* problem = why_not_cluster(args);
    const int size = launch.cluster_size == 0 ? automatic_cluster(args) : launch.cluster_size;
    if (problem == nullptr && size > 0) {
      return launch_rows_cluster(args, stream, size);
    }
    if (launch.strategy == RowStrategy::kCluster) {
      return problem == nullptr ? "the cluster row kernel cannot hold a row of this width" : problem;
    }
  }
  return launch_rows_streaming(args, launch, static_cast<cudaStream_t>(stream));
}

} // namespace distill::losses
