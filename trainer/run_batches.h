#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>

#include "trainer/checkpoint/state.h"
#include "trainer/loader/batch_loader.h"
#include "trainer/sharding/mesh.h"
#include "trainer/training_data.h"

namespace distill::trainer {

// The global batches of a run on one rank, read ahead by a thread: those of data.train, or, in an on-policy run, those
// of one round after the other.
class RunBatches {
 public:
  // All of them outlive this. `row_bytes`: of the teacher's rows that come with each token.
  RunBatches(
      const config::Config& config, const sharding::Mesh& mesh, TrainingData& data, int64_t row_bytes,
      BatchLoader::Hooks hooks);

  // From the run's state on, the batches are those of data.train.
  void read_train(const checkpoint::TrainState& state);
  // From the run's state on, which is in its round, the batches have the round's sequences and those of data.train.
  void read_round(const checkpoint::TrainState& state, std::shared_ptr<const data::BatchSource> round);

  // Whether an on-policy run has to begin its next round before it can read a batch.
  bool round_is_due(const checkpoint::TrainState& state) const {
    return config_.onpolicy.enabled() &&
        (!state.round.begun() || state.step >= state.round.first_step + state.round.steps);
  }
  // Sequences of data.train in each step.
  int64_t train_sequences() const {
    return train_sequences_;
  }
  // What the batches are read from, and the number there of the first sample of the next step.
  const data::BatchSource& source() const {
    return *source_;
  }
  int64_t position(const checkpoint::TrainState& state) const {
    return first_sample_ + (state.step - first_step_) * config_.train.global_batch_size;
  }
  // nullopt: a rank was asked to stop. An error of one rank is an error on all.
  absl::StatusOr<std::optional<GlobalBatch>> next() {
    return loader_->next();
  }

 private:
  void open(std::shared_ptr<const data::BatchSource> source, int64_t step, int64_t first_sample, int64_t batches);
  int64_t micro_batches() const; // of a step, on this rank

  const config::Config& config_;
  const sharding::Mesh& mesh_;
  TrainingData& data_;
  int64_t row_bytes_;
  BatchLoader::Hooks hooks_;
  int64_t train_sequences_ = 0;
  int64_t first_step_ = 0, first_sample_ = 0; // where the source has been read from
  std::shared_ptr<const data::BatchSource> source_;
  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::unique_ptr<BatchLoader> loader_;
};

} // namespace distill::trainer
