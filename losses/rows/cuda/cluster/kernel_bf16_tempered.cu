// This kernel is for bf16 logits at a temperature other than 1, without softcap, bias or label smoothing.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_bf16_tempered(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<__nv_bfloat16, cluster::Mode::kTempered>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
