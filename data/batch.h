#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace distill::data {

// What the teacher reads in place of a micro-batch's tokens: B sequences of T tokens.
struct TeacherBatch {
  at::Tensor tokens_BT; // int64
  at::Tensor positions_BT; // int64; restart at 0 at the start of each segment
  at::Tensor cu_seqlens; // int32 [segments + 1], in the flattened tokens
  int64_t max_seqlen = 0; // of the longest segment, tokens
  // int64; for each of the student's tokens with a target, the position in the flattened teacher tokens from which the
  // teacher predicts the same target. For the others any position of their sequence.
  at::Tensor rows_BS;
};

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
  std::optional<TeacherBatch> teacher; // with a teacher stream; else the teacher reads the same tokens
};

} // namespace distill::data
