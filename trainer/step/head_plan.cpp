#include "trainer/step/head_plan.h"

#include "data/base/status_macros.h"
#include "losses/head/linear_head.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/teachers.h"

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

Environment environment_of_teacher(const config::Config& config, Environment environment) {
  if (config.this_teacher >= 0) {
    environment.teacher_dtype = config::scalar_type(config.teacher.dtype, environment.run_dtype);
  }
  return environment;
}

namespace {

absl::StatusOr<losses::ChunkPlan> plan_of_teacher(
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

} // namespace

absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const Teachers& teachers,
    const Environment& environment, bool needs_grad) {
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  losses::ChunkPlan most;
  for (size_t i = 0; i < teachers.size(); ++i) {
    ASSIGN_OR_RETURN(
        losses::ChunkPlan plan,
        plan_of_teacher(configs[i], student, teachers[i], environment_of_teacher(configs[i], environment), needs_grad));
    most = i == 0 || plan.bytes > most.bytes ? std::move(plan) : std::move(most);
  }
  return most;
}

} // namespace distill::trainer
