// This kernel is for fp32 logits at T = 1 without softcap, bias or label smoothing, with JSD, forward or reverse KL, or
// labels alone: the usual case in training.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<float, cluster::Mode::kUnit>(args, plan, cluster_size, stream);
}

namespace {

template <Divergence kDivergence, bool kTeacher>
int at_once(int cluster_size) {
  using G = cluster::Geometry<kMaxTiles, float, kTeacher, kUsesQa<kDivergence>>;
  return cluster::max_active_clusters(
      cluster::rows_cluster<kMaxTiles, float, kDivergence, kTeacher, cluster::Mode::kUnit>, G::kThreads, G::kBytes,
      cluster_size);
}

} // namespace

int clusters_at_once(bool teacher, int cluster_size) {
  return teacher ? at_once<Divergence::kJsd, true>(cluster_size) : at_once<Divergence::kNone, false>(cluster_size);
}

} // namespace distill::losses
