#pragma once

#include <ATen/core/Tensor.h>

namespace distill::models {

// Where sequences begin and end among the N flattened tokens of a micro-batch, on the model's device.
struct SequenceInfo {
  int64_t batch = 0; // B; N = batch * seq_len
  int64_t seq_len = 0; // S
  at::Tensor positions_N; // int64
  at::Tensor cu_seqlens; // int32 [segments + 1], on the device
  std::vector<int64_t> segments_host; // the same boundaries on the host
  int64_t max_seqlen = 0;
  bool packed = false; // false: every row is one segment
};

} // namespace distill::models
