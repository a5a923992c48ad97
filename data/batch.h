#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace distill::data {

// One micro-batch on the host. B sequences of S tokens each; flattened, N = B * S.
struct Batch {
  at::Tensor tokens_BS; // int64
  at::Tensor targets_BS; // int64; the token after tokens_BS[b][s], -100 where there is no loss
  at::Tensor positions_BS; // int64; restart at 0 with every packed document
  at::Tensor cu_seqlens; // int32 [segments + 1] over the flattened tokens: attention never crosses a boundary
  int64_t max_seqlen = 0; // longest segment, tokens
  int64_t valid_tokens = 0; // targets that are not -100
  bool packed = false; // false: the segments are exactly the B sequences
};

} // namespace distill::data
