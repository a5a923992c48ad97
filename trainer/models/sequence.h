#pragma once

#include <ATen/core/Tensor.h>
#include <absl/types/span.h>

#include <vector>

namespace distill::models {

// The boundaries of the sequences among the N flattened tokens of a micro-batch, on the model's device.
struct SequenceInfo {
  int64_t batch = 0; // B; N = batch * seq_len
  int64_t seq_len = 0; // S
  at::Tensor positions_N; // int64; restart at 0 with every segment
  at::Tensor cu_seqlens; // int32 [segments + 1], on the device
  std::vector<int64_t> segments_host; // the same boundaries on the host
  int64_t max_seqlen = 0;
  bool packed = false; // false: every row is one segment
};

// Makes sequences of which every row is one segment.
SequenceInfo dense_sequences(int64_t batch, int64_t seq_len, at::Device device);

// Makes the segments [boundaries[i], boundaries[i + 1]) over the flattened tokens; boundaries run from 0 to batch *
// seq_len, never decrease, and hold every row's start, so that attention never crosses a row.
SequenceInfo packed_sequences(int64_t batch, int64_t seq_len, absl::Span<const int64_t> boundaries, at::Device device);

} // namespace distill::models
