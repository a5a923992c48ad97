// This kernel is for bf16 logits at T = 1 without softcap, bias or label smoothing, as a model in bf16 returns them.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_bf16_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<__nv_bfloat16, cluster::Mode::kUnit>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
