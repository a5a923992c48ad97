#include "trainer/run_batches.h"

#include "data/prefetch.h"
#include "trainer/loader/mixed_batches.h"
#include "trainer/step/train_step.h"

namespace distill::trainer {

RunBatches::RunBatches(
    const config::Config& config, const sharding::Mesh& mesh, TrainingData& data, int64_t row_bytes,
    BatchLoader::Hooks hooks)
    : config_(config), mesh_(mesh), data_(data), row_bytes_(row_bytes), hooks_(std::move(hooks)) {}

int64_t RunBatches::micro_batches() const {
  return config_.train.global_batch_size / mesh_.samples_together(config_.train.micro_batch_size);
}

void RunBatches::open(
    std::shared_ptr<const data::BatchSource> source, int64_t step, int64_t first_sample, int64_t batches) {
  source_ = std::move(source);
  first_step_ = step;
  first_sample_ = first_sample;
  const int64_t micro = config_.train.micro_batch_size;
  loader_.reset();
  prefetcher_ = std::make_unique<data::Prefetcher>(
      source_, data::BatchSchedule{mesh_.own_first(first_sample, micro), micro, mesh_.samples_together(micro), batches},
      read_ahead(micro_batches(), row_bytes_));
  loader_ = std::make_unique<BatchLoader>(mesh_, *prefetcher_, micro_batches(), hooks_);
}

void RunBatches::read_train(const checkpoint::TrainState& state) {
  train_sequences_ = config_.train.global_batch_size;
  open(data_.shared_set(), state.step, state.train_samples, /*batches=*/-1);
}

void RunBatches::read_round(const checkpoint::TrainState& state, std::shared_ptr<const data::BatchSource> round) {
  const int64_t sequences = config_.train.global_batch_size, done = state.step - state.round.first_step;
  train_sequences_ = sequences - state.round.sequences;
  const BatchMix mix{sequences, state.round.sequences, state.train_samples - done * train_sequences_};
  open(
      std::make_shared<MixedBatches>(std::move(round), data_.shared_set(), mix), state.step, done * sequences,
      (state.round.steps - done) * micro_batches());
}

} // namespace distill::trainer
