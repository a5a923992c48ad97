// Blocks of 512 threads, one to an SM.
#include "losses/rows_cluster.cuh"

namespace distill::losses {

namespace {

const char* launch_fp32(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, RowMode mode, cudaStream_t stream) {
  using cluster_detail::launch;
  switch (mode) {
    case RowMode::kJsd:
      return launch<512, float, RowMode::kJsd>(args, plan, cluster_size, stream);
    case RowMode::kForwardKl:
      return launch<512, float, RowMode::kForwardKl>(args, plan, cluster_size, stream);
    case RowMode::kReverseKl:
      return launch<512, float, RowMode::kReverseKl>(args, plan, cluster_size, stream);
    case RowMode::kHard:
      return launch<512, float, RowMode::kHard>(args, plan, cluster_size, stream);
    case RowMode::kGeneral:
      return launch<512, float, RowMode::kGeneral>(args, plan, cluster_size, stream);
    case RowMode::kGeneralHard:
      return launch<512, float, RowMode::kGeneralHard>(args, plan, cluster_size, stream);
  }
  return "row kernel: unknown mode";
}

} // namespace

const char* launch_cluster_512(
    const RowArgs& args, const ClusterPlan& plan, int cluster_size, RowMode mode, void* raw) {
  using cluster_detail::launch;
  auto* stream = static_cast<cudaStream_t>(raw);
  if (args.logits_type == ElementType::kFloat32) {
    return launch_fp32(args, plan, cluster_size, mode, stream);
  }
  // bf16 logits are half the bytes and an exception: the general mode covers them.
  return args.teacher == nullptr ? launch<512, __nv_bfloat16, RowMode::kGeneralHard>(args, plan, cluster_size, stream)
                                 : launch<512, __nv_bfloat16, RowMode::kGeneral>(args, plan, cluster_size, stream);
}

} // namespace distill::losses
