#pragma once

#include <absl/status/statusor.h>

#include "losses/head/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/models/model_config.h"
#include "trainer/step/environment.h"
#include "trainer/teacher/teacher_spec.h"

namespace distill::trainer {

// The largest number of tokens with a target in a micro-batch: all tokens, or one less if documents are packed, since a
// document's last token has no target.
int64_t most_valid_tokens(const config::Config& config);

// The run's loss, with the softcaps of both models' logits.
losses::LossOptions loss_of(
    const config::Config& config, const models::ModelConfig& student, const TeacherSpec& teacher);

// The loss of sequences that the student has written itself.
losses::LossOptions onpolicy_loss_of(
    const config::Config& config, const models::ModelConfig& student, const TeacherSpec& teacher);

// The dtypes of a run in which one of several teachers is the only one. `config`: that of the teacher.
Environment environment_of_teacher(const config::Config& config, Environment environment);

// The loss head's chunks for such a micro-batch, from shapes alone; they do not depend on the divergence.
// `environment`: its device need not exist. With several teachers,
// those that take the most memory. InvalidArgument if loss.memory_cap_mb is too small.
absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const Teachers& teachers,
    const Environment& environment, bool needs_grad);

} // namespace distill::trainer
