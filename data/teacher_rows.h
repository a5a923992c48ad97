#pragma once

#include <absl/status/statusor.h>

#include "data/batch.h"

namespace distill::data {

class Dataset;

// A store of a teacher's predictions by document and offset: whatever makes up a batch, its tokens are found.
class TeacherRows {
 public:
  virtual ~TeacherRows() = default;

  // InvalidArgument: not all stretches that the data set may hold (Dataset::for_each_stretch) are there.
  virtual absl::Status check_stretches(const Dataset& data) const = 0;

  struct Reading {
    int64_t bytes = 0;
    double seconds = 0; // of the threads that read
  };
  // What has been read since the last call.
  virtual Reading take_reading() = 0;

  // The rows of a batch (Batch::teacher_rows_NW). An undefined tensor: some token with a target is not there yet. To be
  // called by any number of threads. DataLoss names the damaged file.
  virtual absl::StatusOr<at::Tensor> read(const Batch& batch) const = 0;
};

} // namespace distill::data
