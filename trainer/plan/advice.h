#pragma once

#include <functional>
#include <vector>

#include "trainer/plan/plan.h"

namespace distill::plan {

using Planner = std::function<absl::StatusOr<Plan>(const PlanRequest&)>;

// Up to three changes of the configuration with which the run fits, each the best value of its key: the changes that
// cost least time per token first. Single keys; pairs of them where no single one is enough.
std::vector<Change> cheapest_changes(const PlanRequest& request, const Planner& plan);

} // namespace distill::plan
