#include "trainer/step/head_plan.h"

#include "losses/head/linear_head.h"

namespace distill::trainer {

int64_t most_valid_tokens(const config::Config& config) {
  const int64_t tokens = config.train.micro_batch_size * config.data.seq_len;
  return config.data.packing == data::PackingMode::kPack ? tokens - 1 : tokens;
}

losses::LossOptions loss_of(
    const config::Config& config, const models::ModelConfig& student, const TeacherSpec& teacher) {
  losses::LossOptions loss = config.loss;
  loss.student_softcap = student.final_softcap;
  loss.teacher_softcap = teacher.exists() ? teacher.model().config.final_softcap : 0;
  return loss;
}

losses::LossOptions onpolicy_loss_of(
    const config::Config& config, const models::ModelConfig& student, const TeacherSpec& teacher) {
  const losses::LossOptions common = loss_of(config, student, teacher);
  losses::LossOptions loss = config.onpolicy_loss;
  loss.student_softcap = common.student_softcap;
  loss.teacher_softcap = common.teacher_softcap;
  loss.logits_dtype = common.logits_dtype;
  loss.metrics = common.metrics;
  return loss;
}

absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const TeacherSpec& teacher,
    const Environment& environment, bool needs_grad) {
  const int64_t tokens = config.train.micro_batch_size * config.data.seq_len;
  const auto meta = [](std::initializer_list<int64_t> shape, at::ScalarType dtype) {
    return at::empty(shape, at::TensorOptions().dtype(dtype).device(at::kMeta));
  };
  losses::LinearHeadInputs head;
  head.hidden_NH = meta({tokens, student.hidden_size}, environment.student_dtype);
  head.weight_VH = meta({student.vocab_size, student.hidden_size}, environment.student_dtype);
  head.targets_N = meta({tokens}, at::kLong);
  teacher.add_shapes(tokens, environment.teacher_dtype, head);
  head.valid_tokens = most_valid_tokens(config);
  head.meta_device = environment.device.type();
  return losses::linear_head_plan(head, loss_of(config, student, teacher), config.chunks, needs_grad);
}

} // namespace distill::trainer
