#pragma once

#include <string>
#include <vector>

#include "trainer/metrics/line_fields.h"
#include "trainer/metrics/step_record.h"

namespace distill::metrics {

// All that a progress line may say of a step. The bar and the lines are made from these. The name of a number that is a
// lower bound ends with ">", that of an estimate with "~".
std::vector<LineField> step_fields(const StepRecord& record);

// The line with all fields.
std::string step_line(const StepRecord& record);

// The progress line of an evaluation after `step` steps.
std::string eval_line(int64_t step, const LossMeans& means);

} // namespace distill::metrics
