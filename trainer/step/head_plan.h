#pragma once

#include <absl/status/statusor.h>

#include "losses/head/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/models/model_config.h"
#include "trainer/step/environment.h"

namespace distill::trainer {

// Tokens of a micro-batch that have a target, where every document does: all of them, but for the last one of each
// document where documents are packed.
int64_t most_valid_tokens(const config::Config& config);

// The loss head's chunks for one micro-batch of such tokens, from shapes alone. `teacher` null: none. `environment`:
// its device need not be there. InvalidArgument where loss.memory_cap_mb is too small.
absl::StatusOr<losses::ChunkPlan> plan_head(
    const config::Config& config, const models::ModelConfig& student, const models::ModelConfig* teacher,
    const Environment& environment, bool needs_grad);

} // namespace distill::trainer
