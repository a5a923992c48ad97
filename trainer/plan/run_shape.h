#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <optional>
#include <vector>

#include "losses/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/models/activation_policy.h"
#include "trainer/models/model_config.h"

namespace distill::plan {

// Everything about a run that decides its memory and its time: shapes and counts, no weights.
struct RunShape {
  models::ModelConfig student;
  std::optional<models::ModelConfig> teacher;
  at::ScalarType student_dtype = at::kBFloat16;
  at::ScalarType teacher_dtype = at::kBFloat16;
  bool cuda = true;
  int64_t batch = 1; // sequences of a micro-batch
  int64_t seq_len = 0;
  int64_t micro_batches = 1; // of a step, on one rank
  bool packed = false; // documents are packed: another attention kernel
  losses::ChunkPlan head;
  bool gathers_rows = false; // the head leaves out tokens without a target: the last one of each packed document
  bool bf16_logits = false;
  int64_t shard = 1; // ranks that share one copy of the models
  bool shard_teacher = true; // false: each rank has all of the teacher
  int64_t replicate = 1;
  int64_t ranks_per_node = 8;
  int64_t prefetch = 1;
  bool bf16_reduce = false;
  bool accumulate_whole = false; // parallel.accumulate: whole gradients are kept over micro-batches
  bool optimizer_on_host = false;
  bool checkpoint_on_host = false; // periodic checkpoints are copied to host memory first
  int64_t threads = 1; // of the CPU
  std::vector<models::ActivationPolicy> policies; // of the student's blocks

  int64_t tokens() const { // of a micro-batch
    return batch * seq_len;
  }
  int64_t ranks() const {
    return shard * replicate;
  }
  int64_t vocab() const; // columns of the logits
};

// Where a run is to take place.
struct Target {
  bool cuda = true;
  at::ScalarType student_dtype = at::kBFloat16;
  at::ScalarType teacher_dtype = at::kBFloat16;
  int64_t world_size = 1;
  int64_t ranks_per_node = 8;
  int64_t threads = 1;
};

// The head's chunks for a micro-batch, from shapes alone. Every token counts, but for packed documents' last ones.
absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const models::ModelConfig* teacher,
    const Target& target, bool needs_grad);

// `policies` is left empty where memory.activation is auto. InvalidArgument names the key.
absl::StatusOr<RunShape> run_shape(
    const config::Config& config, const models::ModelConfig& student, const models::ModelConfig* teacher,
    const Target& target);

} // namespace distill::plan
