// This kernel is for fp32 logits at a temperature other than 1, without softcap, bias or label smoothing.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_tempered(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<float, cluster::Mode::kTempered>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
