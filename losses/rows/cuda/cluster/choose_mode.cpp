#include "losses/rows/cuda/cluster/choose_mode.h"

namespace distill::losses {

bool is_usual(const RowArgs& args) {
  const Divergence divergence = effective_divergence(args.options);
  return args.teacher == nullptr || divergence == Divergence::kJsd || divergence == Divergence::kForwardKl ||
      divergence == Divergence::kReverseKl;
}

bool has_cluster_kernel(const RowArgs& args) {
  return args.logits_type == ElementType::kFloat32 ||
      (args.logits_type == ElementType::kBFloat16 && cluster_mode(args) != cluster::Mode::kGeneral);
}

cluster::Mode cluster_mode(const RowArgs& args) {
  using cluster::Mode;
  const LossOptions& o = args.options;
  const bool capped = o.student_softcap > 0 || o.teacher_softcap > 0;
  const bool fp32 = args.logits_type == ElementType::kFloat32;
  const bool unit = o.temperature == 1;
  if (o.label_smoothing > 0 || args.student_bias != nullptr || args.teacher_bias != nullptr) {
    return Mode::kGeneral;
  }
  if (!is_usual(args)) {
    const bool divergence = effective_divergence(o) != Divergence::kNone;
    return fp32 && unit && !capped && divergence ? Mode::kUnit : Mode::kGeneral;
  }
  if (capped && !fp32) {
    return Mode::kGeneral;
  }
  const bool only_loss = unit && fp32 && o.metrics == MetricSet::kLoss;
  if (capped) {
    const bool every_side = o.student_softcap > 0 && (args.teacher == nullptr || o.teacher_softcap > 0);
    return only_loss && every_side ? Mode::kCappedLoss : (unit ? Mode::kCapped : Mode::kCappedTempered);
  }
  return only_loss ? Mode::kUnitLoss : (unit ? Mode::kUnit : Mode::kTempered);
}

} // namespace distill::losses
