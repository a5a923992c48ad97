#include "trainer/models/sequence.h"

namespace distill::models {
namespace {

SequenceInfo from_boundaries(int64_t batch, int64_t seq_len, std::vector<int64_t> boundaries, at::Device device) {
  SequenceInfo seq;
  seq.batch = batch;
  seq.seq_len = seq_len;
  at::Tensor positions = at::empty({batch * seq_len}, at::kLong);
  at::Tensor cu_seqlens = at::empty({static_cast<int64_t>(boundaries.size())}, at::kInt);
  auto* position = positions.mutable_data_ptr<int64_t>();
  auto* boundary = cu_seqlens.mutable_data_ptr<int32_t>();
  for (size_t s = 0; s < boundaries.size(); ++s) {
    boundary[s] = static_cast<int32_t>(boundaries[s]);
    if (s + 1 < boundaries.size()) {
      seq.max_seqlen = std::max(seq.max_seqlen, boundaries[s + 1] - boundaries[s]);
      for (int64_t n = boundaries[s]; n < boundaries[s + 1]; ++n) {
        position[n] = n - boundaries[s];
      }
    }
  }
  seq.positions_N = positions.to(device);
  seq.cu_seqlens = cu_seqlens.to(device);
  seq.segments_host = std::move(boundaries);
  return seq;
}

} // namespace

SequenceInfo dense_sequences(int64_t batch, int64_t seq_len, at::Device device) {
  TORCH_CHECK(
      batch > 0 && seq_len > 0, "a micro-batch of at least one token is expected, found ", batch, " x ", seq_len);
  std::vector<int64_t> boundaries;
  for (int64_t b = 0; b <= batch; ++b) {
    boundaries.push_back(b * seq_len);
  }
  return from_boundaries(batch, seq_len, std::move(boundaries), device);
}

SequenceInfo packed_sequences(int64_t batch, int64_t seq_len, absl::Span<const int64_t> boundaries, at::Device device) {
  TORCH_CHECK(
      batch > 0 && seq_len > 0, "a micro-batch of at least one token is expected, found ", batch, " x ", seq_len);
  TORCH_CHECK(
      boundaries.size() >= 2 && boundaries.front() == 0 && boundaries.back() == batch * seq_len,
      "segment boundaries from 0 to ", batch * seq_len, " are expected");
  int64_t next_row = 0;
  for (size_t s = 0; s < boundaries.size(); ++s) {
    TORCH_CHECK(
        s == 0 || boundaries[s] >= boundaries[s - 1], "segment boundaries must not decrease, found ", boundaries[s],
        " after ", boundaries[s - 1]);
    TORCH_CHECK(
        boundaries[s] <= next_row * seq_len, "a segment crosses from row ", next_row - 1, " into row ", next_row,
        " (tokens ", boundaries[s - (s > 0)], " to ", boundaries[s], ", rows of ", seq_len, ")");
    next_row += boundaries[s] == next_row * seq_len;
  }
  SequenceInfo seq = from_boundaries(batch, seq_len, {boundaries.begin(), boundaries.end()}, device);
  seq.packed = true;
  return seq;
}

} // namespace distill::models
