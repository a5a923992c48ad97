#include "trainer/loader/mixed_batches.h"

namespace distill::trainer {

absl::StatusOr<data::Batch> MixedBatches::batch(int64_t first, int64_t count) const {
  const int64_t step = first / mix_.sequences, sequence = first % mix_.sequences;
  const int64_t own = mix_.on_policy;
  TORCH_CHECK(
      sequence >= own ? sequence + count <= mix_.sequences : sequence + count <= own, "sequences ", sequence, " to ",
      sequence + count, " of a step are of two kinds: the first ", own, " of ", mix_.sequences, " are on-policy");
  if (sequence >= own) {
    return train_->batch(mix_.first_train + step * (mix_.sequences - own) + sequence - own, count);
  }
  absl::StatusOr<data::Batch> batch = round_->batch(step * own + sequence, count);
  if (batch.ok()) {
    batch->on_policy = true;
  }
  return batch;
}

} // namespace distill::trainer
