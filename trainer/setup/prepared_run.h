#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/plan/plan.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/run_context.h"

namespace distill::trainer {

// Everything that is known and checked before a weight is read.
struct PreparedRun {
  Inputs inputs;
  plan::Plan plan; // with the policy of every block of the student
  std::vector<std::string> report; // lines that describe the run that is about to start
  std::vector<std::string> warnings; // lines that the user should read before the run starts
};

// Opens and checks models, tokenizers and data, plans the memory and refuses what does not fit. The plan divides the
// host memory that is free now among the ranks of this host: all of them must prepare before any of them takes its
// part.
absl::StatusOr<PreparedRun> prepare_run(const RunContext& context);

// Called by all ranks once all of them have prepared: the plan becomes the one for what all of them can do
// (agree_on_gathers), memory is limited by it, and the report gets its lines. FailedPrecondition: it does not fit.
absl::Status settle_plan(
    const config::Config& config, const Environment& environment, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh, PreparedRun& prepared);

} // namespace distill::trainer
