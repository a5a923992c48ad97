#pragma once

#include <memory>
#include <utility>

#include "data/batch_source.h"

namespace distill::trainer {

// How the sequences of a step are divided between on-policy ones, which come first, and those of data.train.
struct BatchMix {
  int64_t sequences = 0; // of a step, over all ranks
  int64_t on_policy = 0; // of these
  int64_t first_train = 0; // the sample of data.train with which step 0 begins; may be negative if step 0 is not read
};

// The samples of the steps of one round: sample s * mix.sequences + i is sequence i of the round's step s. A batch has
// sequences of one kind.
class MixedBatches : public data::BatchSource {
 public:
  // `round`: of which step s reads the samples from s * mix.on_policy on.
  MixedBatches(
      std::shared_ptr<const data::BatchSource> round, std::shared_ptr<const data::BatchSource> train,
      const BatchMix& mix)
      : round_(std::move(round)), train_(std::move(train)), mix_(mix) {}

  absl::StatusOr<data::Batch> batch(int64_t first, int64_t count) const override;

 private:
  std::shared_ptr<const data::BatchSource> round_, train_;
  BatchMix mix_;
};

} // namespace distill::trainer
