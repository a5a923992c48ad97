#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "losses/head/chunk_policy.h"
#include "losses/head/inputs.h"
#include "trainer/teacher_cache/row_format.h"

// Conversion of a teacher's hidden states to rows, and of rows that hold a few tokens of the vocabulary to the teacher
// of the loss head. R tokens, N tokens of a batch, W bytes of a row, G hidden size, V vocabulary.
namespace distill::teacher_cache {

// Returns a number for each token with a target, int64 [R] on the host: a hash of its shard's header_hash, its document
// and its place there, which no batch, rank or order changes. Draws are keyed by it.
at::Tensor token_keys(const data::Batch& batch);

// The tensors that rows are made from. The head's logits exist chunk by chunk, under the cap of `chunks`.
struct RowSource {
  at::Tensor hidden_RG;
  at::Tensor lm_head_VG; // of at least RowFormat::columns rows
  at::Tensor keys_R; // int64 (kSampled)
  c10::DeviceType meta_device = c10::DeviceType::CUDA; // losses::LinearHeadInputs
};
// Makes rows [R, W] of any kind on the device of the hidden states, or meta. Hidden states are encoded as they are.
// Draws from a distribution that is not finite have the id -1, which is no token.
at::Tensor make_rows(const RowFormat& format, const RowSource& source, const losses::ChunkOptions& chunks);

// Gives the loss head the teacher of rows [N, W] of a few tokens each, on its device (or meta).
void give_teacher(const RowFormat& format, const at::Tensor& rows_NW, losses::LinearHeadInputs& inputs);

} // namespace distill::teacher_cache
