// This kernel is for the calls of kernel_capped.cu in which every side has a softcap and only the loss is asked for.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_capped_loss(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<float, cluster::Mode::kCappedLoss>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
