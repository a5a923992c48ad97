#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>

#include "data/dataset.h"
#include "trainer/metrics/step_record.h"
#include "trainer/micro_batch.h"
#include "trainer/sharding/mesh.h"

namespace distill::trainer {

struct EvaluationResult {
  metrics::LossMeans means; // over all valid tokens: the same numbers training reports for the same tokens
  int64_t samples = 0;
  bool interrupted = false; // a rank was asked to stop; the means cover the samples so far
};

// What an evaluation asks of the run around it.
struct EvaluationHooks {
  std::function<bool()> asked_to_stop; // whether this rank was; may be asked often, while it waits for its data
  std::function<void()> before_batch = [] {}; // before each micro-batch is computed
};

// Runs over the first max_batches * micro_batch_size samples of `data` (0: all of them) without gradients, the ranks
// taking turns; every rank gets the same result. The ranks meet before every micro-batch: a rank that waits for its
// data goes on meeting the others, so that one that was asked to stop stops them all at once. An error of one is one on
// all.
absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroStep& micro, const std::shared_ptr<const data::Dataset>& data, int64_t micro_batch_size, int64_t max_batches,
    bool has_teacher, const sharding::Mesh& mesh, const EvaluationHooks& hooks);

} // namespace distill::trainer
