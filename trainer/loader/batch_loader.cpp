#include "trainer/loader/batch_loader.h"

#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

constexpr std::chrono::milliseconds kRetry{100}; // between two all-reduces of ranks that wait for data

enum Sum : int64_t {
  kStop, // ranks that were asked to stop
  kMissing, // ranks without their data
  kFailed, // ranks whose data cannot be read
  kValidTokens,
  kWriting, // BatchLoader::Writers, as is the next one
  kFailedToWrite,
  kNumSums
};

} // namespace

// Takes what is ready, and waits a moment where that is not all.
absl::Status BatchLoader::collect() {
  while (!complete()) {
    ASSIGN_OR_RETURN(std::optional<data::Batch> batch, batches_.next_within(kRetry));
    if (!batch) {
      break;
    }
    collected_.push_back(*std::move(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GlobalBatch>> BatchLoader::next() {
  while (true) {
    const absl::Status own = collect();
    const Writers writers = hooks_.own_writers();
    at::Tensor sums = at::zeros({kNumSums}, at::kLong);
    int64_t* values = sums.mutable_data_ptr<int64_t>();
    values[kStop] = hooks_.asked_to_stop() ? 1 : 0;
    values[kMissing] = complete() ? 0 : 1;
    values[kFailed] = own.ok() ? 0 : 1;
    for (const data::Batch& batch : collected_) {
      values[kValidTokens] += batch.valid_tokens;
    }
    values[kWriting] = writers.writing;
    values[kFailedToWrite] = writers.failed;
    if (mesh_.host != nullptr) {
      mesh_.host->all_reduce(sums);
    }
    RETURN_IF_ERROR(hooks_.take_writers({values[kWriting], values[kFailedToWrite]}));
    if (values[kFailed] > 0) {
      return own.ok() ? absl::AbortedError(absl::StrFormat(
                            "%d other rank(s) could not read their data; their messages say why", values[kFailed]))
                      : own;
    }
    if (values[kStop] > 0) {
      return std::optional<GlobalBatch>();
    }
    if (values[kMissing] == 0) {
      return std::optional(GlobalBatch{std::exchange(collected_, {}), values[kValidTokens]});
    }
  }
}

} // namespace distill::trainer
