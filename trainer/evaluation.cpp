#include "trainer/evaluation.h"

namespace distill::trainer {

absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroStep& micro, const data::Dataset& data, int64_t micro_batch_size, int64_t max_batches, bool has_teacher,
    const std::function<bool()>& should_stop) {
  EvaluationResult result;
  int64_t samples = data.num_samples();
  if (max_batches > 0) {
    samples = std::min(samples, max_batches * micro_batch_size);
  }
  at::Tensor sums_K = micro.zero_sums();
  int64_t valid_tokens = 0;
  while (result.samples < samples && !result.interrupted) {
    const int64_t count = std::min(micro_batch_size, samples - result.samples);
    const absl::StatusOr<data::Batch> batch = data.batch(result.samples, count);
    if (!batch.ok()) {
      return batch.status();
    }
    micro.evaluate(*batch, sums_K);
    valid_tokens += batch->valid_tokens;
    result.samples += count;
    result.interrupted = should_stop();
  }
  result.means = metrics::loss_means(sums_to_host(sums_K), valid_tokens, has_teacher);
  return result;
}

} // namespace distill::trainer
