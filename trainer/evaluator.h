#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "trainer/config/config.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/micro_batch.h"

namespace distill::trainer {

struct EvaluationResult {
  // Means over all valid tokens: the same numbers that training reports for the same tokens. NaN if there are none.
  metrics::LossMeans means;
  std::vector<metrics::TeacherMeans> teachers; // of several teachers, the means of each
  int64_t samples = 0;
  bool interrupted = false; // a rank was asked to stop; the means cover the samples so far
};

// What an evaluation needs from the run that calls it.
struct EvaluationHooks {
  std::function<bool()> asked_to_stop; // whether this rank was asked to stop; called often while it waits for its data
  std::function<void()> before_batch = [] {}; // called before each micro-batch is computed
  config::ProgressStyle progress = config::ProgressStyle::kNone; // how rank 0 shows an evaluation that takes long
};

// Runs over the first max_batches * micro_batch_size samples of `data` (0: all of them) without gradients, the ranks
// taking turns; every rank gets the same result. Of several teachers, each has its share of max_batches, and one at
// least on each rank. An error of one rank is an error on all. `on_policy`: the loss is that
// of the section onpolicy_loss.
absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroBatchRunner& micro, const std::shared_ptr<const data::Dataset>& data, int64_t micro_batch_size,
    int64_t max_batches, const sharding::Mesh& mesh, const EvaluationHooks& hooks, bool on_policy = false);

// Computes the loss of each sample [first, first + count) separately, and returns a line of text for each, the same
// ones on every rank; the text calls them samples from `number` on. All ranks take part, each with an equal share of
// the samples.
absl::StatusOr<std::vector<std::string>> sample_losses(
    MicroBatchRunner& micro, const data::BatchSource& data, int64_t first, int64_t count, int64_t number,
    const sharding::Mesh& mesh);

} // namespace distill::trainer
