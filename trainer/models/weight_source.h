#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"

// The source of a model's initial weights: a Hugging Face folder, or a seed. Both give any range of a unit's flat
// buffer, so that a process reads only its shard, and loading needs no memory beyond the model's own.
namespace distill::models {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Reads elements [flat_begin, flat_begin + dst.numel()) of the unit's flat buffer, converted to dst's dtype.
  // Alignment gaps and everything past layout.numel become zero. dst: one-dimensional, contiguous, floating point, on
  // any device.
  void copy_range(const UnitLayout& layout, int64_t flat_begin, at::Tensor dst) const;

  // InvalidArgument: some of the values that copy_range has given so far are not finite; names the file and the
  // tensors.
  virtual absl::Status status() const {
    return absl::OkStatus();
  }

  // Tells whether values can be written directly on this device; for other devices they are made on the host and
  // copied.
  virtual bool writes_to(at::Device device) const {
    return device.is_cpu();
  }

 protected:
  // Reads elements [first, first + dst.numel()) of one Hugging Face tensor into a contiguous tensor on a device for
  // which writes_to() is true.
  virtual void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const = 0;
};

} // namespace distill::models
