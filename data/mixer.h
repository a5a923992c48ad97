#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <vector>

namespace distill::data {

// Spreads several sources over one sequence of samples in proportion to their weights, as evenly as possible: after n
// samples a source has given n * weight / sum of weights, to within one or two. The order repeats every kPeriod
// samples, so that any sample's source and its number within that source are found in O(1).
class Mixer {
 public:
  static constexpr int64_t kPeriod = 65536;

  struct Place {
    int64_t source; // index
    int64_t sample; // counted within the source
  };

  // Positive finite weights, at most kPeriod of them. Weights are rounded to 1 / kPeriod of their sum, at least that.
  explicit Mixer(absl::Span<const double> weights);

  Place locate(int64_t sample) const;
  // How many of the samples before `sample` are the source's.
  int64_t count_before(int64_t sample, int64_t source) const;

 private:
  std::vector<int64_t> quota_; // [sources] samples of each period
  std::vector<uint16_t> source_; // [kPeriod]
  std::vector<uint16_t> before_; // [kPeriod] how often this source came earlier in the period
};

} // namespace distill::data
