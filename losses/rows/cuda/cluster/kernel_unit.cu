// fp32 logits at T = 1 without softcap, bias or label smoothing: the usual case in training.
#include "losses/rows/cuda/cluster/kernel.cuh"

namespace distill::losses {

const char* launch_cluster_unit(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  using cluster::launch;
  if (args.teacher == nullptr) {
    return launch<float, Divergence::kNone, false, false>(args, plan, cluster_size, stream);
  }
  switch (effective_divergence(args.options)) {
    case Divergence::kJsd:
      return launch<float, Divergence::kJsd, true, false>(args, plan, cluster_size, stream);
    case Divergence::kForwardKl:
      return launch<float, Divergence::kForwardKl, true, false>(args, plan, cluster_size, stream);
    case Divergence::kReverseKl:
      return launch<float, Divergence::kReverseKl, true, false>(args, plan, cluster_size, stream);
    default:
      return "row kernel at T = 1: only JSD, the KLs, or labels alone";
  }
}

} // namespace distill::losses
