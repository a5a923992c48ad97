#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"

// Which tokens have a row in a cache: those with a target. Of a teacher with a tokenizer of its own
// (Stretch::teacher_tokens) they are tokens of its text, those before a token of the completion.
namespace distill::teacher_cache {

struct RowPlace {
  int64_t token = 0; // within its document, or the document's text in the teacher's tokens
  int64_t at = 0; // among the flattened tokens of the batch, or those of the teacher
};

// The rows of a stretch, in order. `begin`, `tokens`: of the part of it that is asked for; of a teacher with a
// tokenizer of its own it is the whole stretch.
std::vector<RowPlace> row_places(const data::Batch& batch, const data::Stretch& stretch, int64_t begin, int64_t tokens);
inline std::vector<RowPlace> row_places(const data::Batch& batch, const data::Stretch& stretch) {
  return row_places(batch, stretch, stretch.begin, stretch.tokens);
}

// The tokens of a document's text in the teacher's own tokens that have a row, among the first `tokens`.
std::vector<int64_t> own_text_rows(const data::Shard& shard, int64_t document, int64_t tokens);

// The flattened tokens of a batch that may have a row: the student's, or those of a teacher with a tokenizer of its
// own.
int64_t tokens_with_rows(const data::Batch& batch);

} // namespace distill::teacher_cache
