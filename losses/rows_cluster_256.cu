// Blocks of 256 threads, two to an SM: only what training mostly runs, fp32 logits at T = 1.
#include "losses/rows_cluster.cuh"

namespace distill::losses {

const char* launch_cluster_256(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, RowMode mode, void* raw) {
  using cluster_detail::launch;
  auto* stream = static_cast<cudaStream_t>(raw);
  switch (args.logits_type == ElementType::kFloat32 ? mode : RowMode::kGeneral) {
    case RowMode::kJsd:
      return launch<256, float, RowMode::kJsd>(args, plan, cluster_size, stream);
    case RowMode::kForwardKl:
      return launch<256, float, RowMode::kForwardKl>(args, plan, cluster_size, stream);
    case RowMode::kReverseKl:
      return launch<256, float, RowMode::kReverseKl>(args, plan, cluster_size, stream);
    case RowMode::kHard:
      return launch<256, float, RowMode::kHard>(args, plan, cluster_size, stream);
    default:
      return "row kernel with 256 threads: only fp32 logits, T = 1, no softcap, and JSD, KL or labels alone";
  }
}

} // namespace distill::losses
