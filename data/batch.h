#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace distill::data {

// One micro-batch on the host: B sequences of S tokens each; flattened, N = B * S tokens.
struct Batch {
  at::Tensor tokens_BS; // int64
  at::Tensor targets_BS; // int64; the token after tokens_BS[b][s], -100 where there is no loss
  at::Tensor positions_BS; // int64; restart at 0 at the start of each segment
  at::Tensor
      cu_seqlens; // int32 [segments + 1]: segment boundaries in the flattened tokens, which attention never crosses
  int64_t max_seqlen = 0; // of the longest segment, tokens
  int64_t valid_tokens = 0; // targets that are not -100
  bool packed = false; // false: each sequence is one segment
};

} // namespace distill::data
