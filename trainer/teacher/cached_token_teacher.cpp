#include "trainer/teacher/cached_token_teacher.h"

#include "trainer/teacher/token_batch.h"
#include "trainer/teacher_cache/row_conversion.h"

namespace distill::trainer {

std::vector<Prediction> CachedTokenTeacher::predict(
    const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) {
  Prediction all = of_all_tokens(batch);
  const at::Tensor rows_NW = cached_rows_on_device(batch, tokens.tokens_N.device());
  sharding::prefetch_first(next);
  teacher_cache::give_teacher(rows_, rows_NW, all.head);
  return {std::move(all)};
}

losses::MetricQualities CachedTokenTeacher::quality(const losses::LossOptions& loss) const {
  return losses::available_metrics(rows_.kind, loss);
}

} // namespace distill::trainer
