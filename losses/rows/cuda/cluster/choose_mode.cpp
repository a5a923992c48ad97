#include "losses/rows/cuda/cluster/choose_mode.h"

namespace distill::losses {

cluster::Mode cluster_mode(const RowArgs& args) {
  using cluster::Mode;
  const LossOptions& o = args.options;
  const Divergence divergence = effective_divergence(o);
  const bool usual_divergence = args.teacher == nullptr || divergence == Divergence::kJsd ||
      divergence == Divergence::kForwardKl || divergence == Divergence::kReverseKl;
  if (!usual_divergence || o.label_smoothing > 0 || args.student_bias != nullptr || args.teacher_bias != nullptr) {
    return Mode::kGeneral;
  }
  if (o.student_softcap > 0 || o.teacher_softcap > 0) {
    return args.logits_type == ElementType::kFloat32 && o.temperature == 1 ? Mode::kCapped : Mode::kGeneral;
  }
  return o.temperature == 1 ? Mode::kUnit : Mode::kTempered;
}

} // namespace distill::losses
