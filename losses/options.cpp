#include "losses/options.h"

#include <cmath>
#include <string>
#include <vector>

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

namespace distill::losses {

namespace {

class Problems {
 public:
  void require(bool ok, const char* key, const char* expected, double found) {
    if (!ok) {
      lines_.push_back(absl::StrFormat("%s: expected %s, found %g", key, expected, found));
    }
  }

  absl::Status status() const {
    return lines_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

// False for NaN.
bool at_least_zero(double value) {
  return value >= 0 && std::isfinite(value);
}

} // namespace

Divergence effective_divergence(const LossOptions& o) {
  if (o.divergence == Divergence::kJsd && (o.beta == 0 || o.beta == 1)) {
    return o.beta == 0 ? Divergence::kForwardKl : Divergence::kReverseKl;
  }
  if (o.divergence == Divergence::kSkewForwardKl && o.skew_alpha == 0) {
    return Divergence::kForwardKl;
  }
  if (o.divergence == Divergence::kSkewReverseKl && o.skew_alpha == 0) {
    return Divergence::kReverseKl;
  }
  return o.divergence;
}

absl::Status validate(const LossOptions& o) {
  Problems problems;
  problems.require(o.beta >= 0 && o.beta <= 1, "beta", "a number in [0, 1] (0 forward KL, 1 reverse KL)", o.beta);
  problems.require(o.skew_alpha >= 0 && o.skew_alpha < 1, "skew_alpha", "a number in [0, 1)", o.skew_alpha);
  problems.require(o.temperature > 0 && std::isfinite(o.temperature), "temperature", "a number > 0", o.temperature);
  problems.require(at_least_zero(o.hard_weight), "hard_weight", "a number >= 0", o.hard_weight);
  problems.require(at_least_zero(o.soft_weight), "soft_weight", "a number >= 0", o.soft_weight);
  problems.require(
      o.label_smoothing >= 0 && o.label_smoothing < 1, "label_smoothing", "a number in [0, 1)", o.label_smoothing);
  problems.require(at_least_zero(o.z_loss), "z_loss", "a number >= 0", o.z_loss);
  problems.require(at_least_zero(o.student_softcap), "student_softcap", "a number >= 0 (0: off)", o.student_softcap);
  problems.require(at_least_zero(o.teacher_softcap), "teacher_softcap", "a number >= 0 (0: off)", o.teacher_softcap);
  return problems.status();
}

absl::Status validate(const ChunkOptions& o) {
  Problems problems;
  problems.require(o.chunk_size >= 0, "chunk_size", "tokens >= 0 (0: automatic)", static_cast<double>(o.chunk_size));
  problems.require(o.memory_cap_mb >= 1, "memory_cap_mb", "MiB >= 1", static_cast<double>(o.memory_cap_mb));
  problems.require(o.min_chunk_size >= 1, "min_chunk_size", "tokens >= 1", static_cast<double>(o.min_chunk_size));
  return problems.status();
}

} // namespace distill::losses
