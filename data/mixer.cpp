#include "data/mixer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace distill::data {

namespace {

// Apportions the period by largest remainders, with at least one sample for each source.
std::vector<int64_t> quotas(absl::Span<const double> weights, int64_t period) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto sources = static_cast<int64_t>(weights.size());
  std::vector<int64_t> quota(weights.size());
  std::vector<double> ideal(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    ideal[i] = weights[i] / sum * static_cast<double>(period);
    quota[i] = std::max<int64_t>(static_cast<int64_t>(ideal[i]), 1);
  }
  int64_t missing = period - std::accumulate(quota.begin(), quota.end(), int64_t{0});
  for (; missing != 0; missing += missing > 0 ? -1 : 1) {
    int64_t best = -1;
    for (int64_t i = 0; i < sources; ++i) {
      const double gap = (ideal[i] - static_cast<double>(quota[i])) * (missing > 0 ? 1 : -1);
      const bool allowed = missing > 0 || quota[i] > 1;
      if (allowed && (best < 0 || gap > (ideal[best] - static_cast<double>(quota[best])) * (missing > 0 ? 1 : -1))) {
        best = i;
      }
    }
    quota[best] += missing > 0 ? 1 : -1;
  }
  return quota;
}

} // namespace

Mixer::Mixer(absl::Span<const double> weights) {
  TORCH_CHECK(
      !weights.empty() && static_cast<int64_t>(weights.size()) < kPeriod, "1 to ", kPeriod - 1, " sources, found ",
      weights.size());
  for (const double weight : weights) {
    TORCH_CHECK(std::isfinite(weight) && weight > 0, "weights are positive and finite, found ", weight);
  }
  quota_ = quotas(weights, kPeriod);
  if (weights.size() == 1) {
    return;
  }
  // Each slot goes to the source that is furthest behind its share. At the end of the period every quota is met
  // exactly.
  std::vector<int64_t> given(weights.size(), 0);
  source_.resize(kPeriod);
  before_.resize(kPeriod);
  for (int64_t slot = 0; slot < kPeriod; ++slot) {
    size_t best = weights.size();
    int64_t best_lag = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t lag = quota_[i] * (slot + 1) - given[i] * kPeriod;
      if (given[i] < quota_[i] && (best == weights.size() || lag > best_lag)) {
        best = i;
        best_lag = lag;
      }
    }
    source_[slot] = static_cast<uint16_t>(best);
    before_[slot] = static_cast<uint16_t>(given[best]++);
  }
}

Mixer::Place Mixer::locate(int64_t sample) const {
  if (quota_.size() == 1) {
    return {0, sample};
  }
  const int64_t slot = sample % kPeriod;
  const int64_t source = source_[slot];
  return {source, sample / kPeriod * quota_[source] + before_[slot]};
}

int64_t Mixer::count_before(int64_t sample, int64_t source) const {
  if (quota_.size() == 1) {
    return sample;
  }
  const auto end = source_.begin() + sample % kPeriod;
  return sample / kPeriod * quota_[source] + std::count(source_.begin(), end, static_cast<uint16_t>(source));
}

} // namespace distill::data
