#pragma once

#include <absl/status/statusor.h>

#include "trainer/plan/machine.h"
#include "trainer/plan/memory_prediction.h"

namespace distill::plan {

// Runs the capture of two micro-batches on meta tensors, and predicts what one rank of it takes: the teacher, its pass
// over a micro-batch, the rows that are made of it, and as MemoryPrediction::host_teacher the rows on their way to the
// disk. `rows`: what is stored of each token. InvalidArgument names the key; also where loss.memory_cap_mb is too small
// for making the rows. `machine`: for what was not measured. `device_bytes`: that the capture may take; 0: unknown.
absl::StatusOr<MemoryPrediction> predict_capture(
    const config::Config& config, const trainer::TeacherSpec& teacher, const teacher_cache::RowFormat& rows,
    const Target& target, bool teacher_stream, const Machine& machine, int64_t device_bytes);

} // namespace distill::plan
