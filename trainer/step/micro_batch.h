#pragma once

#include <array>
#include <functional>

#include "data/batch.h"
#include "losses/linear_head.h"
#include "trainer/config/config.h"
#include "trainer/metrics/phase_timer.h"
#include "trainer/sharding/passes.h"

namespace distill::trainer {

// Where the student's activations wait for the backward pass. No policies: evaluation alone.
struct ActivationMemory {
  std::vector<models::ActivationPolicy> policies; // of each block
  std::shared_ptr<device::HostSlab> host; // null: nothing is offloaded
};

// The computation of one micro-batch: teacher forward, student forward, loss head, student backward.
// K = losses::kNumRows.
class MicroStep {
 public:
  // `teacher` null: hard labels only. Both models outlive this.
  MicroStep(
      const config::Config& config, sharding::ModelShards& student, sharding::ModelShards* teacher,
      ActivationMemory memory = {});

  // Accumulates the gradients of grad_scale * sum of the tokens' losses into the student's units and adds the sums of
  // every row over the tokens to sums_K (fp64, on the device).
  // `last`: of the step's micro-batches.
  void train(const data::Batch& batch, double grad_scale, at::Tensor& sums_K, bool last);
  // Starts gathering what the next micro-batch begins with, as far as the optimizer does not change it.
  void prefetch_first();
  // The same losses without gradients.
  void evaluate(const data::Batch& batch, at::Tensor& sums_K);

  // Begins a phase of a training step, which the observer hears of.
  void begin(metrics::Phase phase);
  void observe_phases(std::function<void(const char* phase)> observer) {
    phase_observer_ = std::move(observer);
  }
  // Of the training micro-batches since it was last read.
  metrics::PhaseTimer& phases() {
    return phases_;
  }

  at::Tensor zero_sums() const; // fp64 [K] on the device

 private:
  // Targets, and the teacher's hidden states with its lm_head, whose unit stays gathered until run_head is done with
  // it.
  losses::LinearHeadInputs run_teacher(const data::Batch& batch, const sharding::MicroBatch& micro);
  losses::LinearHeadOutput run_head(losses::LinearHeadInputs& inputs, losses::LinearHeadGrads* grads);

  const config::Config& config_;
  sharding::ModelShards& student_;
  sharding::ModelShards* teacher_;
  models::RopeTable student_rope_, teacher_rope_;
  sharding::TrainingPass pass_;
  metrics::PhaseTimer phases_;
  std::function<void(const char* phase)> phase_observer_;
};

// Waits for the device.
std::array<double, losses::kNumRows> sums_to_host(const at::Tensor& sums_K);

} // namespace distill::trainer
