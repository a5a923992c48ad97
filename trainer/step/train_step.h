#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "trainer/config/config.h"
#include "trainer/metrics/async_readback.h"
#include "trainer/metrics/step_metrics.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/gradient_probe.h"
#include "trainer/step/loaded_models.h"
#include "trainer/step/micro_batch.h"

namespace distill::trainer {

// A rank's part of one optimizer step. All of its micro-batches are read before the first one runs, since the loss is
// divided by the number of valid tokens of the whole batch.
struct GlobalBatch {
  std::vector<data::Batch> micro_batches;
  int64_t valid_tokens = 0; // over all ranks
};

// The largest number of micro-batches that a rank's data thread has ready, for steps of `micro_batches`. The plan
// needs it, too. If each brings
// rows of the teacher, of `row_bytes` for each token, those of the next step are enough.
constexpr int64_t read_ahead(int64_t micro_batches, int64_t row_bytes) {
  return row_bytes > 0 ? micro_batches + 1 : 2 * micro_batches;
}

// The largest number of micro-batches in host memory: those of a step, those that are ready, one that is being read.
constexpr int64_t most_in_memory(int64_t micro_batches, int64_t row_bytes) {
  return micro_batches + read_ahead(micro_batches, row_bytes) + 1;
}

// One optimizer step: micro-batches, reduce, norm and clip, update. Steps are queued on the device and the host does
// not wait for them: a step's numbers come back when the next one has been queued (on the CPU at once), so that the
// device always has work.
class TrainStep {
 public:
  // `mesh` and `models` must outlive this object. `memory`: where activations are stored. `block`: the functions that
  // run a decoder block.
  TrainStep(
      const config::Config& config, const sharding::Mesh& mesh, LoadedModels& models, ActivationMemory memory,
      models::BlockFunctions block = {});

  struct Options {
    double lr = 0;
    int64_t step = 0; // its number since the start of the run
    bool failed = false; // this rank cannot go on; all ranks learn this from the step's numbers
    bool more = true; // further steps follow
    bool shadow = false; // of a float8 student: compute the gradients in the compute dtype first, and compare
    std::function<void()> before_update = [] {}; // called just before the optimizer's work is queued
  };
  // Queues one step. `record`: the fields that the host knows already.
  void enqueue(const GlobalBatch& batch, const Options& options, metrics::StepMetrics record);

  struct Results {
    metrics::StepMetrics record; // with losses, gradient norm, phases and seconds
    int64_t failed_ranks = 0;
    std::string changed_unit; // unit whose checksum changed (parallel.debug_checks); empty: none
  };
  // The oldest step whose numbers are due; `all`: the oldest that has been queued. nullopt: none. Throws
  // metrics::DeviceTimeout if the device does not finish the step within parallel.timeout_s.
  std::optional<Results> results(bool all);

  // The work of enqueue() on the device; returns the step's numbers there. A simulated run calls it directly.
  at::Tensor run(const GlobalBatch& batch, const Options& options);

  MicroBatchRunner& micro_batches() {
    return micro_;
  }
  optim::AdamW& optimizer() {
    return optimizer_;
  }

 private:
  sharding::GatherCount gathered() const; // so far
  int64_t next_teacher() const;
  void accumulate_gradients(const GlobalBatch& batch, MicroBatchRunner::Sums sums);
  GradientProbe shadow_gradients(const GlobalBatch& batch);
  // Adds the numbers about a float8 student to the step's numbers.
  void add_float8_numbers(at::Tensor numbers, const std::optional<GradientProbe>& shadow);
  void reduce_gradients(bool more);
  optim::GradNorm global_norm(at::Tensor numbers, bool failed);

  const config::Config& config_;
  const sharding::Mesh& mesh_;
  LoadedModels& models_;
  MicroBatchRunner micro_;
  optim::AdamW optimizer_;
  metrics::AsyncReadback readback_;
  std::deque<metrics::StepMetrics> queued_;
};

} // namespace distill::trainer
