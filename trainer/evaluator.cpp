#include "trainer/evaluator.h"

#include "data/prefetch.h"

namespace distill::trainer {
namespace {

constexpr std::chrono::milliseconds kPatience{100}; // between two meetings of ranks that wait for data

// The next batch, once every rank has one; nothing: a rank was asked to stop.
absl::StatusOr<std::optional<data::Batch>> next_batch(
    data::Prefetcher& batches, const sharding::Mesh& mesh, const EvaluationHooks& hooks) {
  enum Sum : int64_t {
    kStop,
    kMissing,
    kFailed,
    kNumSums
  };
  std::optional<data::Batch> own;
  absl::Status status;
  while (true) {
    if (!own && status.ok()) {
      auto batch = batches.next_within(kPatience);
      status = batch.status();
      own = batch.ok() ? *std::move(batch) : std::nullopt;
    }
    at::Tensor sums = at::zeros({kNumSums}, at::kLong);
    int64_t* values = sums.mutable_data_ptr<int64_t>();
    values[kStop] = hooks.asked_to_stop() ? 1 : 0;
    values[kMissing] = own ? 0 : 1;
    values[kFailed] = status.ok() ? 0 : 1;
    if (mesh.host != nullptr) {
      mesh.host->all_reduce(sums);
    }
    if (values[kFailed] > 0) {
      return status.ok() ? absl::AbortedError(absl::StrFormat(
                               "%d other rank(s) could not read their data; their messages say why", values[kFailed]))
                         : status;
    }
    if (values[kStop] > 0) {
      return std::optional<data::Batch>();
    }
    if (values[kMissing] == 0) {
      return own;
    }
  }
}

} // namespace

absl::StatusOr<EvaluationResult> evaluate_dataset(
    MicroStep& micro, const std::shared_ptr<const data::Dataset>& data, int64_t micro_batch_size, int64_t max_batches,
    bool has_teacher, const sharding::Mesh& mesh, const EvaluationHooks& hooks) {
  EvaluationResult result;
  const int64_t num_samples = data->num_samples();
  const int64_t samples = max_batches > 0 ? std::min(num_samples, max_batches * micro_batch_size) : num_samples;
  const int64_t round_samples = mesh.world_size * micro_batch_size;
  const int64_t rounds = (samples + round_samples - 1) / round_samples;
  // A rank without samples in the last round computes one of padding: the others gather weights with it.
  const auto range_of = [=, rank = mesh.rank](int64_t round) {
    const int64_t own = round * round_samples + rank * micro_batch_size;
    return own < samples ? data::SampleRange{own, std::min(micro_batch_size, samples - own)}
                         : data::SampleRange{num_samples, 1};
  };
  data::Prefetcher batches(data, range_of, rounds, /*depth=*/2, "eval data");
  at::Tensor sums_K = micro.zero_sums();
  int64_t valid_tokens = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    const auto batch = next_batch(batches, mesh, hooks);
    if (!batch.ok()) {
      return batch.status();
    }
    if (!batch->has_value()) {
      result.interrupted = true;
      break;
    }
    hooks.before_batch();
    micro.evaluate(**batch, sums_K);
    valid_tokens += (*batch)->valid_tokens;
    result.samples = std::min(samples, result.samples + round_samples);
  }
  if (mesh.world != nullptr) {
    mesh.world->all_reduce(sums_K);
  }
  result.means = metrics::loss_means(sums_to_host(sums_K), sharding::sum_over_ranks(mesh, valid_tokens), has_teacher);
  return result;
}

} // namespace distill::trainer
