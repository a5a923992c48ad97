#pragma once

#include <cstdint>

#include <absl/status/status.h>

#include "data/base/enum_names.h"

namespace distill::losses {

// A divergence compares the teacher p = softmax(teacher / T) with the student q = softmax(student / T).
enum class Divergence {
  kNone, // hard labels only
  // Generalised JSD tends to 0 as beta goes to 0 or 1, while beta = 0 is defined as forward KL(p || q) and beta = 1 as
  // reverse KL(q || p), as elsewhere in the field.
  kJsd,
  kForwardKl, // KL(p || q)
  kReverseKl, // KL(q || p)
  kSkewForwardKl, // KL(p || skew_alpha p + (1 - skew_alpha) q)
  kSkewReverseKl, // KL(q || skew_alpha q + (1 - skew_alpha) p)
  kTotalVariation, // 1/2 sum |p - q|
};
constexpr auto enum_names(Divergence) {
  return base::names_of<Divergence>(
      "none", "jsd", "forward_kl", "reverse_kl", "skew_forward_kl", "skew_reverse_kl", "total_variation");
}

enum class LogitsDtype {
  kFloat32,
  kBFloat16
};
constexpr auto enum_names(LogitsDtype) {
  return base::names_of<LogitsDtype>("float32", "bfloat16");
}

// A set of metrics says which numbers of a token are computed besides its gradient (losses/token_metrics.h).
enum class MetricSet {
  kAll,
  // Only the loss, its parts and both log-sum-exps are computed; the others are 0. Some calls have faster kernels for
  // this (losses/rows/cuda/cluster/choose_mode.h). Where the teacher is top-k or samples it means kAll.
  kLoss,
};
constexpr auto enum_names(MetricSet) {
  return base::names_of<MetricSet>("all", "loss");
}

// Targets with this value carry no loss, hard or soft.
inline constexpr int64_t kIgnoreIndex = -100;

// The options define the loss of one token:
//   hard_weight * (CE(labels, label_smoothing) + z_loss * lse^2) + soft_weight * T^2? * divergence(p, q).
struct LossOptions {
  Divergence divergence = Divergence::kJsd;
  double beta = 0.5;
  double skew_alpha = 0.1;
  double temperature = 1.0;
  bool scale_by_temperature_squared = false; // multiplies the soft loss and its gradient by T^2
  double hard_weight = 0.0;
  double soft_weight = 1.0;
  double label_smoothing = 0.0;
  double z_loss = 0.0;
  double student_softcap = 0.0; // 0: off; logits = cap * tanh(logits / cap)
  double teacher_softcap = 0.0;
  // bf16 logits halve the buffers but round the differences from which the gradient is computed: at a student-teacher
  // gap of 0.1 nat the gradient is wrong by tens of per cent (docs/loss_head.md). fp64 inputs always keep fp64 logits.
  LogitsDtype logits_dtype = LogitsDtype::kFloat32;
  MetricSet metrics = MetricSet::kAll;
};

// These options say how many tokens' logits exist at once. memory_cap_mb is hard and wins over the other two.
struct ChunkOptions {
  int64_t chunk_size = 0; // tokens; 0: automatic
  int64_t memory_cap_mb = 1024; // MiB
  int64_t min_chunk_size = 256; // tokens; the automatic size is never below it
};

// Returns the divergence, or the KL that it is: JSD at beta 0 and 1, and skew KLs at alpha 0, are KLs.
Divergence effective_divergence(const LossOptions& options);

// Return InvalidArgument with every value out of its range: the key, what was expected, what was found.
absl::Status validate(const LossOptions& options);
absl::Status validate(const ChunkOptions& options);

} // namespace distill::losses
