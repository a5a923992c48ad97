// This kernel is for fp32 logits at T = 1 with a softcap on one side or both, without bias or label smoothing: Gemma 2.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_capped(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<float, cluster::Mode::kCapped>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
