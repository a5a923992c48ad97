#include "trainer/plan/run_shape.h"

#include "losses/linear_head.h"

namespace distill::plan {

int64_t RunShape::vocab() const {
  return teacher ? std::min(student.vocab_size, teacher->vocab_size) : student.vocab_size;
}

absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const models::ModelConfig* teacher,
    const Target& target, bool needs_grad) {
  const int64_t tokens = config.train.micro_batch_size * config.data.seq_len;
  const auto meta = [](std::initializer_list<int64_t> shape, at::ScalarType dtype) {
    return at::empty(shape, at::TensorOptions().dtype(dtype).device(at::kMeta));
  };
  losses::LinearHeadInputs head;
  head.hidden_NH = meta({tokens, student.hidden_size}, target.student_dtype);
  head.weight_VH = meta({student.vocab_size, student.hidden_size}, target.student_dtype);
  head.targets_N = meta({tokens}, at::kLong);
  if (teacher != nullptr) {
    head.teacher_hidden_NG = meta({tokens, teacher->hidden_size}, target.teacher_dtype);
    head.teacher_weight_VG = meta({teacher->vocab_size, teacher->hidden_size}, target.teacher_dtype);
  }
  head.valid_tokens = config.data.packing == "pack" ? tokens - 1 : tokens;
  return losses::linear_head_plan(head, config.loss, config.chunks, needs_grad, target.cuda ? at::kCUDA : at::kCPU);
}

absl::StatusOr<RunShape> run_shape(
    const config::Config& config, const models::ModelConfig& student, const models::ModelConfig* teacher,
    const Target& target) {
  const config::ParallelSection& parallel = config.parallel;
  RunShape shape;
  shape.student = student;
  shape.teacher = teacher != nullptr ? std::optional(*teacher) : std::nullopt;
  shape.student_dtype = target.student_dtype;
  shape.teacher_dtype = target.teacher_dtype;
  shape.cuda = target.cuda;
  shape.batch = config.train.micro_batch_size;
  shape.seq_len = config.data.seq_len;
  shape.packed = config.data.packing == "pack";
  shape.gathers_rows = shape.packed;
  shape.bf16_logits = config.loss.logits_dtype == losses::LogitsDtype::kBFloat16;
  if (target.world_size % parallel.replicate != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.replicate: expected a divisor of the %d ranks, found %d", target.world_size, parallel.replicate));
  }
  shape.replicate = parallel.replicate;
  shape.shard = parallel.shard > 0 ? parallel.shard : target.world_size / parallel.replicate;
  if (shape.ranks() != target.world_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.shard %d x parallel.replicate %d is %d ranks, but the plan is for %d", shape.shard, shape.replicate,
        shape.ranks(), target.world_size));
  }
  shape.shard_teacher = parallel.shard_teacher;
  const int64_t samples = target.world_size * config.train.micro_batch_size;
  if (config.train.global_batch_size % samples != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "train.global_batch_size: expected a multiple of %d (%d ranks x train.micro_batch_size %d), found %d", samples,
        target.world_size, config.train.micro_batch_size, config.train.global_batch_size));
  }
  shape.micro_batches = config.train.global_batch_size / samples;
  shape.ranks_per_node = target.ranks_per_node;
  shape.prefetch = parallel.prefetch;
  shape.bf16_reduce = parallel.reduce_dtype == "bfloat16";
  shape.accumulate_whole = parallel.accumulate == "keep_full";
  shape.optimizer_on_host = config.memory.optimizer == "host";
  shape.checkpoint_on_host = config.checkpoint.async && config.checkpoint.every > 0;
  shape.threads = target.threads;
  auto head = plan_head(config, student, teacher, target, /*needs_grad=*/true);
  if (!head.ok()) {
    return head.status();
  }
  shape.head = *std::move(head);
  if (config.memory.activation != "auto") {
    auto policies = models::parse_policies(config.memory.activation, student.num_layers);
    if (!policies.ok()) {
      return policies.status();
    }
    shape.policies = *std::move(policies);
  }
  return shape;
}

} // namespace distill::plan
