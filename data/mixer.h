#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <vector>

namespace distill::data {

// Interleaves the samples of several sources in proportion to their weights, as evenly as possible: of any first n
// samples, n * weight / (sum of weights) are of a source, to within one or two. The order repeats every kPeriod
// samples, so that the source of any sample, and its number within the source, are found in O(1).
class Mixer {
 public:
  static constexpr int64_t kPeriod = 65536;

  struct Place {
    int64_t source; // index
    int64_t sample; // counted within the source
  };

  // Positive finite weights, fewer than kPeriod of them. They are rounded to multiples of 1 / kPeriod of their sum, and
  // up to the first one at least.
  explicit Mixer(absl::Span<const double> weights);

  Place locate(int64_t sample) const;
  // Returns the number of samples before `sample` that are of this source.
  int64_t count_before(int64_t sample, int64_t source) const;

 private:
  std::vector<int64_t> quota_; // [sources] samples per period
  std::vector<uint16_t> source_; // [kPeriod]
  std::vector<uint16_t> before_; // [kPeriod] samples of the same source earlier in the period
};

} // namespace distill::data
