#pragma once

#include <array>
#include <functional>

#include "data/batch.h"
#include "losses/head/linear_head.h"
#include "losses/teacher_kind.h"
#include "trainer/config/config.h"
#include "trainer/metrics/alignment_sums.h"
#include "trainer/metrics/phase_timer.h"
#include "trainer/sharding/passes.h"
#include "trainer/step/dropped_mass.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

enum class WhichModel {
  kStudent,
  kTeacher
};

// Where the student's activations are stored until the backward pass. No policies: only evaluation.
struct ActivationMemory {
  std::vector<models::ActivationPolicy> policies; // one for each block
  std::shared_ptr<device::HostSlab> host; // null: nothing is offloaded
};

// The computation of one micro-batch: the teacher's prediction, student forward, loss head, student backward.
// M = metrics::kNumSums.
class MicroBatchRunner {
 public:
  // All models must outlive this object. `block`: the functions that run a decoder block.
  MicroBatchRunner(
      const config::Config& config, sharding::ModelShards& student, const std::vector<LoadedTeacher>& teachers,
      ActivationMemory memory = {}, models::BlockFunctions block = {});

  // Where a training micro-batch adds its numbers, fp64 on the device, and the scales of its losses in the gradients.
  struct Sums {
    at::Tensor metrics_TM; // metrics::kNumSums of each of T teachers
    double scale = 0; // of the sum of the tokens' losses
    at::Tensor routers; // models::RouterSum, of a student with experts
    double router_scale = 0; // of the routers' loss
    int64_t step = 0; // its number, by which a student's adapters drop elements
  };
  // Accumulates the gradients into the student's units. `last`: this is the step's last micro-batch.
  // `first_sequence`: of the batch, among the sequences of the whole step. `next`: the number of the teacher of the
  // micro-batch that follows, in this step or the next one; -1: it is not known.
  void train(const data::Batch& batch, Sums& sums, int64_t first_sequence, bool last, int64_t next);
  // Computes the same losses without gradients, and all metrics, whatever loss.metrics is. `sums_TM`: as in Sums.
  // `tokens_MN`: gets those of each of the batch's N tokens.
  void evaluate(const data::Batch& batch, at::Tensor& sums_TM, at::Tensor* tokens_MN = nullptr);
  // The most probable next token after each of the tokens `rows` (places among the flattened tokens), computed with one
  // forward pass and one token's logits at a time. The teacher's is one of the tokens that have a part in the loss.
  // Waits for the device. The batch's targets are not used.
  std::vector<int64_t> next_tokens(const data::Batch& batch, const std::vector<int64_t>& rows, WhichModel which);
  // The teacher's probability of tokens that have no part in the loss, which evaluate() adds up.
  DroppedMass& dropped_mass(int64_t teacher) {
    return teachers_.at(static_cast<size_t>(teacher)).dropped_mass;
  }
  // How exact the token metrics of train() are, and those of evaluate(), which computes all of them.
  // Over all teachers: as exact as they are for every one of them, or with `teacher` a number, for this one.
  losses::MetricQualities training_quality(int64_t teacher = -1) const;
  losses::MetricQualities evaluation_quality(int64_t teacher = -1) const;
  int64_t teachers() const { // how many
    return static_cast<int64_t>(teachers_.size());
  }
  // Whether next_tokens() can ask the teacher.
  bool teacher_continues_texts() const {
    return teachers_.size() == 1 && teachers_.front().teacher->whole_model() != nullptr;
  }
  // Starts gathering the first units of the next micro-batch, unless the optimizer changes them. `teacher`: as `next`.
  void prefetch_first(int64_t teacher);

  // Begins a phase of a training step, and tells the observer.
  void begin(metrics::Phase phase);
  void observe_phases(std::function<void(const char* phase)> observer) {
    phase_observer_ = std::move(observer);
  }
  // Times of the training micro-batches since they were last read.
  metrics::PhaseTimer& phases() {
    return phases_;
  }

  at::Tensor zero_sums() const; // fp64 [T, M] on the device
  at::Tensor zero_router_sums() const; // fp64; of no elements if the student has no experts

 private:
  // A teacher and what is asked of it.
  struct OwnLoss {
    std::unique_ptr<Teacher> teacher;
    losses::LossOptions loss, onpolicy_loss;
    DroppedMass dropped_mass;
    losses::ColumnRanges columns; // Vocabulary::columns
    int64_t rows = 0; // rows_if_beyond()
    // Of a teacher with a tokenizer of its own.
    losses::SpanOptions spans, onpolicy_spans;
    at::Tensor bias_V, teacher_bias_V; // AlignedLoss
  };
  OwnLoss& of_batch(const data::Batch& batch) {
    return teachers_.at(static_cast<size_t>(batch.teacher_number));
  }
  // The passes of the next micro-batch's teacher.
  std::vector<sharding::Pass> next_passes(int64_t teacher) const;

  // The teacher's predictions with the targets. Their gathered weights stay until run_head gives them back.
  std::vector<Prediction> predict(const data::Batch& batch, const sharding::TokenBatch& tokens);
  // The loss head over each prediction's tokens, of the student's hidden states [N, H], whose numbers are added to the
  // sums_M of its teacher. Returns metrics_MN of all tokens.
  at::Tensor run_head(
      const data::Batch& batch, std::vector<Prediction> predictions, at::Tensor hidden_NH,
      const losses::LossOptions& loss, losses::LinearHeadGrads* grads, at::Tensor sums_M);
  // The head with gradients: adds to the sums and to the lm_head's gradient, and returns the gradient of the hidden
  // states.
  at::Tensor head_with_gradients(
      const data::Batch& batch, std::vector<Prediction> predictions, at::Tensor hidden_NH, const Sums& sums);
  const losses::LossOptions& loss_of_batch(const data::Batch& batch) {
    return batch.on_policy ? of_batch(batch).onpolicy_loss : of_batch(batch).loss;
  }

  const config::Config& config_;
  sharding::ModelShards& student_;
  std::vector<models::RopeTable> student_ropes_;
  models::BlockFunctions block_;
  sharding::TrainingPass pass_;
  std::vector<OwnLoss> teachers_;
  metrics::PhaseTimer phases_;
  std::function<void(const char* phase)> phase_observer_;
};

// Waits for the device and copies the sums of each teacher to the host.
std::vector<std::array<double, metrics::kNumSums>> sums_to_host(const at::Tensor& sums_TM);

} // namespace distill::trainer
