#pragma once

#include <absl/status/statusor.h>

#include "data/batch.h"

namespace distill::data {

class Dataset;

// A store of a teacher's predictions, which are found by document and offset, however batches are put together.
class TeacherRows {
 public:
  virtual ~TeacherRows() = default;

  // InvalidArgument: the store lacks stretches that the data set may hold (Dataset::for_each_stretch).
  virtual absl::Status check_stretches(const Dataset& data) const = 0;

  struct Reading {
    int64_t bytes = 0;
    double seconds = 0; // time that the reading threads spent, summed over them
  };
  // Returns how much has been read since the last call.
  virtual Reading take_reading() = 0;

  // Returns the rows of a batch (Batch::teacher_rows_NW); an undefined tensor if some token with a target is not there
  // yet. Any number of threads may call it. DataLoss names the damaged file.
  virtual absl::StatusOr<at::Tensor> read(const Batch& batch) const = 0;
};

} // namespace distill::data
