// fp32 logits, any divergence, temperature, softcap, bias and label smoothing.
#include "losses/rows_pipeline.cuh"

namespace distill::losses {

const char* launch_pipeline_general(const RowArgs& args, const PipelinePlan& plan, int cluster_size, void* stream) {
  using pipeline::launch;
  using Logit = float;
  if (args.teacher == nullptr) {
    return launch<Logit, Divergence::kNone, false, true>(args, plan, cluster_size, stream);
  }
  switch (effective_divergence(args.options)) {
    case Divergence::kNone:
      return launch<Logit, Divergence::kNone, true, true>(args, plan, cluster_size, stream);
    case Divergence::kJsd:
      return launch<Logit, Divergence::kJsd, true, true>(args, plan, cluster_size, stream);
    case Divergence::kForwardKl:
      return launch<Logit, Divergence::kForwardKl, true, true>(args, plan, cluster_size, stream);
    case Divergence::kReverseKl:
      return launch<Logit, Divergence::kReverseKl, true, true>(args, plan, cluster_size, stream);
    case Divergence::kSkewForwardKl:
      return launch<Logit, Divergence::kSkewForwardKl, true, true>(args, plan, cluster_size, stream);
    case Divergence::kSkewReverseKl:
      return launch<Logit, Divergence::kSkewReverseKl, true, true>(args, plan, cluster_size, stream);
    case Divergence::kTotalVariation:
      return launch<Logit, Divergence::kTotalVariation, true, true>(args, plan, cluster_size, stream);
  }
  return "row kernel: unknown divergence";
}

} // namespace distill::losses
