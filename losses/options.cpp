#include "losses/options.h"

#include <string>
#include <vector>

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "losses/option_ranges.h"

namespace distill::losses {

namespace {

absl::Status status_of(const std::vector<std::string>& problems) {
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
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

std::string expectation(const RealRange& range) {
  return absl::StrFormat(
      "%sa number %sin [%g, %g%c", range.or_zero ? "0 (off), or " : "", range.min > 0 ? "above 0, " : "", range.min,
      range.max, range.max_excluded ? ')' : ']');
}

std::string expectation(const IntegerRange& range) {
  return absl::StrFormat("an integer in [%d, %d]", range.min, range.max);
}

absl::Status validate(const LossOptions& options) {
  std::vector<std::string> problems;
  for (const RealOption& option : kRealOptions) {
    if (const double value = options.*option.value; !contains(option.range, value)) {
      problems.push_back(absl::StrFormat("%s: expected %s, found %g", option.key, expectation(option.range), value));
    }
  }
  return status_of(problems);
}

absl::Status validate(const ChunkOptions& options) {
  std::vector<std::string> problems;
  for (const IntegerOption& option : kIntegerOptions) {
    if (const int64_t value = options.*option.value; !contains(option.range, value)) {
      problems.push_back(absl::StrFormat("%s: expected %s, found %d", option.key, expectation(option.range), value));
    }
  }
  return status_of(problems);
}

} // namespace distill::losses
