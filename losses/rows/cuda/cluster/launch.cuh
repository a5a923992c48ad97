// Launches the cluster row kernel that is compiled for a number of tiles, a type of logits and a divergence.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "losses/rows/cuda/cluster/kernel.cuh"
#include "losses/rows/cuda/cluster/occupancy.cuh"

namespace distill::losses::cluster {

template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, Mode kMode>
const char* launch_as(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  const auto kernel = rows_cluster<kTiles, Logit, kDivergence, kTeacher, kMode>;
  using G = Geometry<kTiles, Logit, kTeacher, kUsesQa<kDivergence>>;
  // This says how many clusters run at once, by device and size. It is asked once, which also sets the attributes.
  static std::array<std::array<std::atomic<int>, kMaxCluster + 1>, kMaxDevices> at_once{};
  const int device = current_device();
  if (device < 0) {
    return "the cluster row kernel needs a CUDA device";
  }
  std::atomic<int>& known = at_once[static_cast<size_t>(device)][static_cast<size_t>(cluster_size)];
  int clusters = known.load();
  if (clusters == 0) {
    clusters = max_active_clusters(kernel, G::kThreads, G::kBytes, cluster_size);
    if (clusters == 0) {
      return "the cluster row kernel does not fit this device";
    }
    known.store(clusters);
  }
  const int64_t used = std::min<int64_t>(clusters, args.num_rows);
  ClusterLaunch launch(G::kThreads, G::kBytes, cluster_size, stream);
  launch.config.gridDim = dim3(static_cast<unsigned>(used * cluster_size));
  if (cudaLaunchKernelEx(&launch.config, kernel, args, row_constants<float>(args), plan, cluster_size) != cudaSuccess) {
    return launch_error();
  }
  return launch_error();
}

template <typename Logit, Divergence kDivergence, bool kTeacher, Mode kMode>
const char* launch(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  if constexpr (most_tiles(kMode) == kLongTiles) {
    if (plan.tiles == kLongTiles) {
      return launch_as<kLongTiles, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size, stream);
    }
  }
  if constexpr (kMode != Mode::kGeneral) {
    const char* problem = "row kernel: no such number of tiles";
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      ((plan.tiles == kMinTiles + kIndex
            ? void(
                  problem = launch_as<kMinTiles + kIndex, Logit, kDivergence, kTeacher, kMode>(
                      args, plan, cluster_size, stream))
            : void()),
       ...);
    }
    (std::make_integer_sequence<int, kMaxTiles - kMinTiles + 1>{});
    return problem;
  } else {
    constexpr int kFewTiles = 8;
    return plan.tiles <= kFewTiles
        ? launch_as<kFewTiles, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size, stream)
        : launch_as<kMaxTiles, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size, stream);
  }
}

// Launches for any divergence, temperature, softcap, bias and label smoothing.
template <typename Logit>
const char* launch_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  if (args.teacher == nullptr) {
    return launch<Logit, Divergence::kNone, false, Mode::kGeneral>(args, plan, cluster_size, stream);
  }
  return with_divergence(effective_divergence(args.options), [&](auto divergence) {
    return launch<Logit, decltype(divergence)::value, true, Mode::kGeneral>(args, plan, cluster_size, stream);
  });
}

// Launches for one of these divergences, with a teacher.
template <typename Logit, Mode kMode, Divergence... kDivergences>
const char* launch_one_of(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  const char* problem = "row kernel: not compiled for this divergence";
  const Divergence divergence = effective_divergence(args.options);
  ((divergence == kDivergences
        ? void(problem = launch<Logit, kDivergences, true, kMode>(args, plan, cluster_size, stream))
        : void()),
   ...);
  return problem;
}

// Launches for the usual calls: labels alone, JSD or a KL.
template <typename Logit, Mode kMode>
const char* launch_usual(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  if (args.teacher == nullptr) {
    return launch<Logit, Divergence::kNone, false, kMode>(args, plan, cluster_size, stream);
  }
  using enum Divergence;
  return launch_one_of<Logit, kMode, kJsd, kForwardKl, kReverseKl>(args, plan, cluster_size, stream);
}

} // namespace distill::losses::cluster
