#include "trainer/teacher/cached_hidden_teacher.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {

CachedHiddenTeacher::CachedHiddenTeacher(
    const config::Config& config, sharding::ModelShards& head, const teacher_cache::RowFormat& rows,
    const Vocabulary& vocabulary)
    : head_(head), rows_(rows), columns_(vocabulary.columns), aligned_(make_aligned_head(config, head, vocabulary)) {}

std::vector<Prediction> CachedHiddenTeacher::predict(
    const data::Batch& batch, const sharding::TokenBatch& /*tokens*/, sharding::ModelShards& next) {
  Prediction all = of_all_tokens(batch);
  const sharding::ShardOptions& options = head_.options();
  const at::Tensor rows_NW = cached_rows_on_device(batch, options.device);
  sharding::prefetch_first(next);
  const at::Tensor hidden_NG = teacher_cache::decode(rows_, rows_NW, options.compute_dtype);
  if (!hidden_NG.is_alias_of(batch.teacher_rows_NW)) { // on the CPU they may be the batch's own
    device::label(hidden_NG, device::Category::kHidden);
  }
  if (aligned_) {
    aligned_->predict(batch, hidden_NG, sharding::lm_head(head_), all);
  } else {
    all.head.teacher_hidden_NG = hidden_NG;
    all.head.teacher_weight_VG = sharding::lm_head(head_);
  }
  all.head.columns = columns_;
  return {std::move(all)};
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
