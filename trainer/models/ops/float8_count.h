#pragma once

#include <cstdint>

namespace distill::models {

// The counts of what rounding lost, summed over calls: int64 [3] on the device of the data. Underflow is counted in a
// sample of the rows, which costs no time.
enum Float8Count : int64_t {
  kFloat8Lost, // values of the sampled rows, other than zero, that became zero
  kFloat8Values, // all values of the sampled rows
  kFloat8BadRows, // rows with an infinite value or NaN, of which nothing is left
  kFloat8Counts
};
inline constexpr int64_t kFloat8SampledRows = 8; // the first of every 8 rows is in the sample

} // namespace distill::models
