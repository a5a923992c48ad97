#include "trainer/metrics/float8_check.h"

#include <absl/strings/str_format.h>

#include <cmath>
#include <numeric>

namespace distill::metrics {

std::optional<double> Float8Check::step(double forward_kl) {
  if (found_ || error_ <= 0 || !std::isfinite(forward_kl)) {
    return std::nullopt;
  }
  last_.push_back(forward_kl);
  if (last_.size() > kSteps) {
    last_.pop_front();
  }
  const double mean = std::accumulate(last_.begin(), last_.end(), 0.0) / static_cast<double>(last_.size());
  found_ = last_.size() == kSteps && mean < kFactor * error_;
  return found_ ? std::optional<double>(mean) : std::nullopt;
}

std::string describe_float8(double forward_kl, double error) {
  return absl::StrFormat(
      "the student's KL to the float8 teacher is %.4g nats (mean of %d steps), only %.1f times the error of the float8 "
      "teacher itself, %.4g: part of what the student learns is rounding; `distill quantize` finds "
      "teacher.float8_exceptions for a smaller error, teacher.dtype: bfloat16 has none",
      forward_kl, Float8Check::kSteps, forward_kl / error, error);
}

} // namespace distill::metrics
