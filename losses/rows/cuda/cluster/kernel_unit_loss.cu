// This kernel is for the calls of kernel_unit.cu in which only the loss is asked for.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_unit_loss(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<float, cluster::Mode::kUnitLoss>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
