#pragma once

#include <absl/status/statusor.h>

#include <functional>

#include "data/dataset.h"
#include "trainer/metrics/step_record.h"
#include "trainer/micro_step.h"
#include "trainer/sharding/mesh.h"

namespace distill::trainer {

struct EvaluationResult {
  metrics::LossMeans means; // over all valid tokens: the same numbers training reports for the same tokens
  int64_t samples = 0;
  bool interrupted = false; // should_stop said so; the means cover the samples so far
};

// Runs over the first max_batches * micro_batch_size samples of `data` (0: all of them) without gradients, the ranks
// taking turns; every rank gets the same result. `should_stop` is asked after every micro-batch, on all ranks alike.
absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroStep& micro, const data::Dataset& data, int64_t micro_batch_size, int64_t max_batches, bool has_teacher,
    const sharding::Mesh& mesh, const std::function<bool()>& should_stop);

} // namespace distill::trainer
