#pragma once

#include "data/batch.h"
#include "trainer/sharding/passes.h"

namespace distill::trainer {

// The student's tokens of a micro-batch on the device.
sharding::TokenBatch token_batch(const data::Batch& batch, at::Device device);

// The tokens that the teacher reads: its own where the batch has some, else the student's.
sharding::TokenBatch teacher_token_batch(const data::Batch& batch, at::Device device);
// The targets [N] of the teacher's tokens: of each token of its own from which it predicts a target of the student,
// that target; kIgnoreIndex for all others. Without tokens of its own, the student's targets. On the host.
at::Tensor teacher_targets(const data::Batch& batch);

// The rows [N, W] that a cache has of the batch's tokens, on the device. Throws if the batch has none.
at::Tensor teacher_rows(const data::Batch& batch, at::Device device);

// One tensor of a micro-batch on the device; its copy there is not waited for.
at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device);

} // namespace distill::trainer
