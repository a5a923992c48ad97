#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace distill::data {

class Shard;

// Consecutive tokens of one document in a batch. With whole documents (PackingMode::kPack), a model's predictions for
// them depend on nothing before the first one; where the teacher has a text of its own, they depend on all of that text
// that comes before.
struct Stretch {
  const Shard* shard = nullptr; // of the data set, which outlives the batch
  int64_t document = 0; // within the shard
  int64_t begin = 0; // first token, within the document
  int64_t tokens = 0;
  int64_t at = 0; // position of the first token in the flattened batch
  // Of a teacher with a tokenizer of its own, which reads the document's other text from its first token on: how many
  // tokens of it, and the position of the first one in the flattened tokens of the teacher. Otherwise 0.
  int64_t teacher_tokens = 0, teacher_at = 0;
};

// Where student and teacher write the same text in tokens of other tokenizers (TextAlignment): the pieces of the
// batch's completions, those that are more than one token on either side (spans) first. P of the student's tokens are
// in Z pieces, and Q of the teacher's.
struct AlignedPieces {
  // int64: for each token of a piece the position, among the flattened tokens, of the one from which it is predicted,
  // and its piece; in order, so that the pieces' numbers ascend.
  at::Tensor rows_P, pieces_P;
  at::Tensor first_rows_Z; // int64: of each piece the first of its rows_P
  at::Tensor teacher_rows_Q, teacher_pieces_Q;
  at::Tensor teacher_targets_Q; // int64: the teacher's token (a row of its tables) that is predicted
  int64_t pieces = 0, spans = 0; // Z, and how many of them are spans
  int64_t span_tokens = 0, teacher_span_tokens = 0; // of P and of Q, those of spans
};

// What the teacher reads in place of a micro-batch's tokens: B sequences of T tokens.
struct TeacherBatch {
  at::Tensor tokens_BT; // int64
  at::Tensor positions_BT; // int64; restart at 0 at the start of each segment
  at::Tensor cu_seqlens; // int32 [segments + 1], in the flattened tokens
  int64_t max_seqlen = 0; // of the longest segment, tokens
  // int64; for each of the student's tokens with a target, the position in the flattened teacher tokens from which the
  // teacher predicts the same target. For the others any position of their sequence.
  at::Tensor rows_BS;
  std::optional<AlignedPieces>
      aligned; // of a teacher with a tokenizer of its own; rows_BS is then of first_rows_Z alone
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
  int64_t teacher_number = 0; // of the run's teachers, the one of all these sequences
  bool on_policy = false; // the targets are words that the student has written itself
  bool packed = false; // whether documents are packed; a packed sequence may be one segment all the same
  std::optional<TeacherBatch> teacher; // with a teacher stream; else the teacher reads the same tokens
  std::vector<Stretch> stretches; // in order; without padding
  // uint8 [N, bytes of a row]: the row that the data set's TeacherRows hold for each token with a target; the other
  // rows have any content. Of a teacher with a tokenizer of its own, N are its tokens. Undefined tensor: the data set
  // has no TeacherRows, or these lack some token.
  at::Tensor teacher_rows_NW;
};

} // namespace distill::data
