#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "data/batch.h"
#include "trainer/teacher_cache/part_file.h"

namespace distill::teacher_cache {

// Rows that a device has computed, on the way to a part's file.
struct RowsToWrite {
  int64_t part = 0; // all rows of a part are given one after the other
  std::vector<StretchEntry> stretches; // with their number of rows
  at::Tensor rows_RW; // uint8 on the host; complete once `copied` has occurred
  std::shared_ptr<c10::Event> copied; // null: complete
  bool last = false; // of the part
  std::vector<int64_t> tokens; // of each row: its token, within its document; for messages
};

// Starts to copy the rows [R, W] of a batch's tokens with a target from any device to the host; does not wait for the
// device. `shard_number`: of a token shard, its index in the manifest's data. The part is not set.
RowsToWrite rows_to_write(
    const data::Batch& batch, const at::Tensor& rows_RW,
    const std::function<uint32_t(const data::Shard& shard)>& shard_number);

} // namespace distill::teacher_cache
