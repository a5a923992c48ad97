#pragma once

#include "data/batch.h"
#include "trainer/config/config.h"
#include "trainer/sharding/passes.h"

namespace distill::trainer {

// Copies the student's tokens of a micro-batch to the device. It is here and not in step/, because teachers copy
// tokens, too.
sharding::TokenBatch token_batch(const data::Batch& batch, at::Device device);

// Copies the tokens that the teacher reads: its own if the batch has some, else the student's. `rows`: of its table,
// where ids may be beyond it, in documents that are masked from there on: such an id becomes the last one. 0: none are.
sharding::TokenBatch teacher_token_batch(const data::Batch& batch, at::Device device, int64_t rows);
// These rows.
int64_t rows_if_beyond(const config::Config& config, const models::ModelConfig& teacher);
// Returns the targets [N] of the teacher's tokens on the host: for each token of its own from which it predicts a
// target of the student, that target; kIgnoreIndex for all others. Of a teacher with a tokenizer of its own they are
// the tokens of the pieces. Without tokens of its own they are the student's targets.
at::Tensor teacher_targets(const data::Batch& batch);

// Which of the batch's tokens are no padding. Batches that were not read from data have no padding.
struct RealTokens {
  at::Tensor real_N; // fp32, 1 or 0, on the device
  int64_t count = 0;
};
RealTokens real_tokens(const data::Batch& batch, at::Device device);

// Copies the rows [N, W] that a cache has of the batch's tokens to the device. Throws if the batch has none.
at::Tensor cached_rows_on_device(const data::Batch& batch, at::Device device);

// Copies a tensor of a micro-batch to the device, without waiting for the copy there.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

} // namespace distill::trainer
