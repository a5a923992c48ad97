#pragma once

#include <absl/status/statusor.h>

#include "data/batch.h"

namespace distill::data {

// A store of what a teacher says about tokens, by document and offset: whatever makes up a batch, the tokens are found.
class TeacherRows {
 public:
  virtual ~TeacherRows() = default;

  // The rows of a batch (Batch::teacher_rows_NW). An undefined tensor: some token with a target is not there yet. To be
  // called by any number of threads. DataLoss names the damaged file.
  virtual absl::StatusOr<at::Tensor> read(const Batch& batch) const = 0;
};

} // namespace distill::data
