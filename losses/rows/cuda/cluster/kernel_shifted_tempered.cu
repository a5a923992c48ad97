// This kernel is for the calls of kernel_bf16_tempered.cu whose rows do not all start at multiples of 16 bytes.
#include "losses/rows/cuda/cluster/launch.cuh"

namespace distill::losses {

const char* launch_cluster_shifted_tempered(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  return cluster::launch_usual<cluster::ShiftedBf16, cluster::Mode::kTempered>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
