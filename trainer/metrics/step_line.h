#pragma once

#include <string>
#include <vector>

#include "trainer/metrics/line_fields.h"
#include "trainer/metrics/step_metrics.h"

namespace distill::metrics {

// Everything that a progress line may show of a step. The bar and the lines are made from these. The name of a number
// that is a lower bound ends with ">", that of an estimate with "~".
std::vector<LineField> step_fields(const StepMetrics& record);

// The line with all fields.
std::string step_line(const StepMetrics& record);

// The progress line of an evaluation after `step` steps.
std::string eval_line(int64_t step, const LossMeans& means, absl::Span<const TeacherMeans> teachers = {});

} // namespace distill::metrics
