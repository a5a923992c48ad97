#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "data/batch.h"

namespace distill::data {

// Random access to a series of samples, each a sequence of tokens. Thread-safe.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(BatchSource&&) = default;
  BatchSource& operator=(BatchSource&&) = default;
  virtual ~BatchSource() = default;

  // Samples [first, first + count), count >= 1.
  virtual absl::StatusOr<Batch> batch(int64_t first, int64_t count) const = 0;
};

} // namespace distill::data
