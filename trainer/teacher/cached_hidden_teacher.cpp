#include "trainer/teacher/cached_hidden_teacher.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {

void CachedHiddenTeacher::predict(
    const data::Batch& batch, const sharding::TokenBatch& /*tokens*/, sharding::ModelShards& next,
    losses::LinearHeadInputs& head) {
  const sharding::ShardOptions& options = head_.options();
  const at::Tensor rows_NW = teacher_rows(batch, options.device);
  sharding::prefetch_first(next);
  head.teacher_hidden_NG = teacher_cache::decode(rows_, rows_NW, options.compute_dtype);
  if (!head.teacher_hidden_NG.is_alias_of(batch.teacher_rows_NW)) { // on the CPU they may be the batch's own
    device::label(head.teacher_hidden_NG, device::Category::kHidden);
  }
  head.teacher_weight_VG = sharding::lm_head(head_);
}

void CachedHiddenTeacher::release() {
  head_.release(head_.head_unit());
  head_.retire(head_.head_unit());
}

void CachedHiddenTeacher::prefetch_first() {
  sharding::prefetch_first(head_);
}

losses::MetricQualities CachedHiddenTeacher::quality(const losses::LossOptions& loss) const {
  return losses::available_metrics(rows_.kind, loss);
}

} // namespace distill::trainer
