// This kernel is for fp32 logits at T = 1 without softcap, bias or label smoothing: the skew KLs and total variation.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_unit_skew(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  using enum Divergence;
  return cluster::launch_one_of<float, cluster::Mode::kUnit, kSkewForwardKl, kSkewReverseKl, kTotalVariation>(
      args, plan, cluster_size, stream);
}

} // namespace distill::losses
