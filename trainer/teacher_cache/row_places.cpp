#include "trainer/teacher_cache/row_places.h"

#include "data/shard.h"
#include "losses/options.h"

namespace distill::teacher_cache {

std::vector<int64_t> own_text_rows(const data::Shard& shard, int64_t document, int64_t tokens) {
  std::vector<int64_t> rows;
  const int64_t first = tokens > 0 ? shard.teacher_begin(document) : 0;
  for (int64_t token = 0; token + 1 < tokens; ++token) {
    if (shard.in_teacher_completion(first + token + 1)) {
      rows.push_back(token);
    }
  }
  return rows;
}

std::vector<RowPlace> row_places(
    const data::Batch& batch, const data::Stretch& stretch, int64_t begin, int64_t tokens) {
  std::vector<RowPlace> places;
  if (stretch.teacher_tokens > 0) {
    for (const int64_t token : own_text_rows(*stretch.shard, stretch.document, stretch.teacher_tokens)) {
      places.push_back({token, stretch.teacher_at + token});
    }
    return places;
  }
  const int64_t* targets_N = batch.targets_BS.const_data_ptr<int64_t>();
  for (int64_t token = begin; token < begin + tokens; ++token) {
    const int64_t at = stretch.at + token - stretch.begin;
    if (targets_N[at] != losses::kIgnoreIndex) {
      places.push_back({token, at});
    }
  }
  return places;
}

int64_t tokens_with_rows(const data::Batch& batch) {
  return batch.teacher && batch.teacher->aligned ? batch.teacher->tokens_BT.numel() : batch.targets_BS.numel();
}

} // namespace distill::teacher_cache
