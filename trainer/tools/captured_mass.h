#pragma once

#include <absl/status/status.h>

#include "trainer/config/config.h"
#include "trainer/setup/inputs.h"
#include "trainer/sharding/mesh.h"
#include "trainer/teacher/capture_step.h"

namespace distill::trainer {

// Measures the teacher's probability of tokens that have no part in the loss before a capture, over one micro-batch of
// each rank, the first of the last data set, and judges it as a run does (dropped_mass_check.h). Rank 0 logs it. All
// ranks call this together.
absl::Status check_captured_mass(
    const config::Config& config, const CaptureInputs& inputs, sharding::ModelShards& teacher, CaptureStep& step,
    const sharding::Mesh& mesh);

} // namespace distill::trainer
