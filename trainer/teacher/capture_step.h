#pragma once

#include "data/batch.h"
#include "trainer/config/config.h"
#include "trainer/models/block.h"
#include "trainer/sharding/passes.h"
#include "trainer/teacher_cache/row_format.h"

namespace distill::trainer {

// The computation of one micro-batch of a capture: the teacher's forward pass and the rows that a cache stores of it.
// N tokens, R of them with a row, G hidden size, W bytes of a row.
class CaptureStep {
 public:
  // The teacher must outlive this object. `block`: the functions that run a decoder block.
  CaptureStep(
      const config::Config& config, sharding::ModelShards& teacher, teacher_cache::RowFormat rows,
      models::BlockFunctions block = {});

  // Makes the rows [R, W] on the device, uint8. All ranks that share the teacher call this together.
  at::Tensor run(const data::Batch& batch);

  // Computes the final hidden states [places, G] for the tokens at these places (places_with_rows). The head's unit
  // stays in its slot until it is retired.
  at::Tensor hidden(const data::Batch& batch, const at::Tensor& places_R);

  const teacher_cache::RowFormat& format() const {
    return rows_;
  }

 private:
  const config::Config& config_;
  sharding::ModelShards& teacher_;
  teacher_cache::RowFormat rows_;
  models::BlockFunctions block_;
  std::vector<models::RopeTable> ropes_;
};

} // namespace distill::trainer
