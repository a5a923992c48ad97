#include "trainer/plan/run_shape.h"

#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/step/head_plan.h"

namespace distill::plan {

absl::Status divide_ranks(const Target& target, RunShape& shape) {
  const config::ParallelSection& parallel = shape.config.parallel;
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
  const config::TrainSection& train = shape.config.train;
  const int64_t samples = target.world_size * train.micro_batch_size;
  if (train.global_batch_size % samples != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "train.global_batch_size: expected a multiple of %d (%d ranks x train.micro_batch_size %d), found %d", samples,
        target.world_size, train.micro_batch_size, train.global_batch_size));
  }
  shape.micro_batches = train.global_batch_size / samples;
  shape.ranks_per_node = target.ranks_per_node;
  return absl::OkStatus();
}

bool RunShape::has_whole_teacher() const {
  for (size_t i = 0; i < teachers.size(); ++i) {
    if (!teachers[i].loaded().empty() && !is_sharded(i)) {
      return true;
    }
  }
  return false;
}

int64_t RunShape::row_bytes() const {
  int64_t most = 0;
  for (size_t i = 0; i < teachers.size(); ++i) {
    most = std::max(most, row_tokens(i) * teachers[i].row_bytes());
  }
  return most;
}

double RunShape::mean_of_teachers(const std::function<double(size_t teacher)>& quantity) const {
  double mean = 0;
  for (size_t i = 0; i < teachers.size(); ++i) {
    mean += shares[i] * quantity(i);
  }
  return mean;
}

namespace {

// Decides parallel.gather, as the run does when its ranks have joined (trainer/sharding/choose_gather.h).
absl::Status decide_gather(const Target& target, RunShape& shape) {
  config::Gather& gather = shape.config.parallel.gather;
  const bool can_copy = target.peer_memory.value_or(target.ranks_per_node % shape.shard == 0);
  if (gather == config::Gather::kCopy && shape.shard > 1 && !can_copy) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.gather: copy: expected parallel.shard %d to divide the %d ranks of a node, since ranks copy from each "
        "other's memory; auto or nccl works across nodes",
        shape.shard, target.ranks_per_node));
  }
  const bool copies = gather != config::Gather::kNccl && shape.shard > 1 && can_copy;
  gather = copies ? config::Gather::kCopy : config::Gather::kNccl;
  return absl::OkStatus();
}

} // namespace

absl::StatusOr<RunShape> run_shape(
    const config::Config& config, const models::ModelConfig& student, const trainer::Teachers& teachers,
    const Target& target, bool teacher_stream) {
  RunShape shape;
  shape.config = config;
  shape.student = student;
  shape.teachers = teachers;
  shape.teachers.forget_sources();
  shape.configs = config::configs_of_teachers(config);
  shape.shares = config::shares_of_teachers(config);
  shape.environment = target.environment;
  const bool aligned = std::any_of(teachers.begin(), teachers.end(), [](const trainer::TeacherSpec& teacher) {
    return teacher.vocabulary().aligned;
  });
  shape.teacher_stream = (teacher_stream || aligned) && teachers.exist();
  RETURN_IF_ERROR(divide_ranks(target, shape));
  RETURN_IF_ERROR(decide_gather(target, shape));
  shape.config.parallel.slots = std::max(config.parallel.slots, config.parallel.prefetch + 1);
  if (config.memory.recompute == config::Recompute::kAuto) {
    shape.config.memory.recompute = config::Recompute::kAll;
  }
  shape.config.memory.tile_tokens = std::max<int64_t>(0, config.memory.tile_tokens);
  ASSIGN_OR_RETURN(shape.head, trainer::plan_head(config, student, teachers, target.environment, /*needs_grad=*/true));
  const int64_t blocks = student.num_layers();
  ASSIGN_OR_RETURN(shape.policies, config::policies_of_blocks(config.memory.activation, blocks, "memory.activation"));
  ASSIGN_OR_RETURN(shape.places, config::policies_of_blocks(config.memory.optimizer, blocks, "memory.optimizer"));
  return shape;
}

} // namespace distill::plan
