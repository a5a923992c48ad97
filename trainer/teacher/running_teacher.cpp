#include "trainer/teacher/running_teacher.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {

// Evaluation data without a teacher stream may be longer than training data with one.
RunningTeacher::RunningTeacher(
    const config::Config& config, sharding::ModelShards& model, const Vocabulary& vocabulary,
    models::BlockFunctions block)
    : model_(model),
      columns_(vocabulary.columns),
      aligned_(make_aligned_head(config, model, vocabulary)),
      rows_(rows_if_beyond(config, model.config())),
      ropes_(models::make_rope_tables(
          model.config().ropes, std::max(config.data.seq_len, config.data.teacher_length()), model.options().device)),
      block_(std::move(block)),
      whole_{model_, ropes_} {}

at::Tensor RunningTeacher::hidden(
    const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) {
  if (!batch.teacher && rows_ == 0) {
    return sharding::forward_hidden(model_, ropes_, tokens, &next, block_);
  }
  const at::Device device = tokens.tokens_N.device();
  const sharding::TokenBatch own = teacher_token_batch(batch, device, rows_);
  if (!batch.teacher) {
    return sharding::forward_hidden(model_, ropes_, own, &next, block_);
  }
  const at::Tensor rows_N = copy_to_device(batch.teacher->rows_BS.flatten(), device);
  const at::Tensor hidden_TG = sharding::forward_hidden(model_, ropes_, own, &next, block_);
  at::Tensor hidden_NG = hidden_TG.index_select(0, rows_N);
  device::label(hidden_NG, device::Category::kHidden);
  return hidden_NG;
}

std::vector<Prediction> RunningTeacher::predict(
    const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) {
  if (aligned_) {
    return {predict_aligned(batch, next)};
  }
  Prediction all = of_all_tokens(batch);
  all.head.teacher_hidden_NG = hidden(batch, tokens, next);
  all.head.teacher_weight_VG = sharding::lm_head(model_);
  all.head.columns = columns_;
  return {std::move(all)};
}

Prediction RunningTeacher::predict_aligned(const data::Batch& batch, sharding::ModelShards& next) {
  const sharding::TokenBatch own = teacher_token_batch(batch, model_.options().device, /*rows=*/0);
  const at::Tensor hidden_TG = sharding::forward_hidden(model_, ropes_, own, &next, block_);
  Prediction all = of_all_tokens(batch);
  aligned_->predict(batch, hidden_TG, sharding::lm_head(model_), all);
  all.head.columns = columns_;
  return all;
}

void RunningTeacher::release() {
  model_.release(model_.head_unit());
  model_.retire(model_.head_unit());
}

std::vector<sharding::Pass> RunningTeacher::passes() const {
  return {{&model_}};
}

void RunningTeacher::prefetch_first() {
  sharding::prefetch_first(model_);
}

losses::MetricQualities RunningTeacher::quality(const losses::LossOptions& loss) const {
  return losses::available_metrics(losses::TeacherKind::kHidden, loss);
}

} // namespace distill::trainer
