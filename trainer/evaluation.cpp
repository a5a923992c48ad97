#include "trainer/evaluation.h"

namespace distill::trainer {

absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroStep& micro, const data::Dataset& data, int64_t micro_batch_size, int64_t max_batches, bool has_teacher,
    const sharding::Mesh& mesh, const std::function<bool()>& should_stop) {
  EvaluationResult result;
  const int64_t samples =
      max_batches > 0 ? std::min(data.num_samples(), max_batches * micro_batch_size) : data.num_samples();
  at::Tensor sums_K = micro.zero_sums();
  int64_t valid_tokens = 0;
  while (result.samples < samples && !result.interrupted) {
    // A rank without samples in the last round computes one of padding: the others gather weights with it.
    const int64_t own = result.samples + mesh.rank * micro_batch_size;
    const int64_t first = own < samples ? own : data.num_samples();
    const int64_t count = own < samples ? std::min(micro_batch_size, samples - own) : 1;
    const absl::StatusOr<data::Batch> batch = data.batch(first, count);
    if (!batch.ok()) {
      return batch.status();
    }
    micro.evaluate(*batch, sums_K);
    valid_tokens += batch->valid_tokens;
    result.samples = std::min(samples, result.samples + mesh.world_size * micro_batch_size);
    result.interrupted = should_stop();
  }
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sums_K);
  }
  result.means = metrics::loss_means(sums_to_host(sums_K), sharding::sum_over_ranks(mesh, valid_tokens), has_teacher);
  return result;
}

} // namespace distill::trainer
