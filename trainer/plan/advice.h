#pragma once

#include <functional>
#include <vector>

#include "trainer/plan/plan.h"

namespace distill::plan {

using Planner = std::function<absl::StatusOr<Plan>(const PlanRequest&)>;

// Up to three changes of the configuration with which the run fits, each with the mildest value of its key that is
// enough; the changes that cost least time per token come first. After them comes the faster one of the two that round
// the optimizer's moments or the gradients, if one is enough. The two keys that change neither the batch nor the
// ranks, memory.activation and memory.optimizer, are also tried together; other pairs of keys only if no key alone is
// enough.
std::vector<Change> cheapest_changes(const PlanRequest& request, const Planner& plan);

} // namespace distill::plan
