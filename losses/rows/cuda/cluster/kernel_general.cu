// This kernel is for fp32 logits with any divergence, temperature, softcap, bias and label smoothing.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_general<float>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
