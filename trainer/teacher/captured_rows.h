#pragma once

#include "data/batch.h"
#include "losses/options.h"
#include "trainer/sharding/model_shards.h"
#include "trainer/teacher_cache/row_format.h"

// The rows that a cache stores of a micro-batch (teacher_cache/row_places.h). N tokens, R of them with a row, W bytes
// of a row.
namespace distill::trainer {

// Returns the places of the tokens with a row among the flattened tokens, int64 [R] on the host: the student's, or
// those of a teacher with a tokenizer of its own. A simulated batch has no tokens: its places are as many zeros as
// there may be rows.
at::Tensor places_with_rows(const data::Batch& batch);

// Makes the rows [R, W] on the device from the teacher's final hidden states [R, G] at these places. All ranks that
// share the teacher call this together: for a few tokens of the vocabulary its lm_head is gathered.
at::Tensor rows_of_teacher(
    const teacher_cache::RowFormat& format, const data::Batch& batch, sharding::ModelShards& teacher,
    const at::Tensor& hidden_RG, const losses::ChunkOptions& chunks);

} // namespace distill::trainer
