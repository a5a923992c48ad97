#include "trainer/step_gate.h"

namespace distill::trainer {
namespace {

constexpr std::chrono::milliseconds kPatience{100}; // between two meetings of ranks that wait for data

enum Sum : int64_t {
  kStop, // ranks that were asked to stop
  kMissing, // ranks without their data
  kFailed, // ranks whose data cannot be read
  kValidTokens,
  kWriting, // ranks that are writing a checkpoint
  kWriteFailed,
  kNumSums
};

} // namespace

// Takes what is ready, and waits a moment where that is not all.
absl::Status StepGate::collect() {
  while (static_cast<int64_t>(collected_.size()) < micro_batches_) {
    auto batch = batches_.next_within(kPatience);
    if (!batch.ok()) {
      return batch.status();
    }
    if (!batch->has_value()) {
      break;
    }
    collected_.push_back(**std::move(batch));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GlobalBatch>> StepGate::next() {
  while (true) {
    const absl::Status own = collect();
    const checkpoint::Saver::Vote vote = checkpoints_.vote();
    at::Tensor sums = at::zeros({kNumSums}, at::kLong);
    int64_t* values = sums.mutable_data_ptr<int64_t>();
    values[kStop] = stop_.received() != 0 ? 1 : 0;
    values[kMissing] = static_cast<int64_t>(collected_.size()) < micro_batches_ ? 1 : 0;
    values[kFailed] = own.ok() ? 0 : 1;
    for (const data::Batch& batch : collected_) {
      values[kValidTokens] += batch.valid_tokens;
    }
    values[kWriting] = vote.writing;
    values[kWriteFailed] = vote.failed;
    if (mesh_.host != nullptr) {
      mesh_.host->all_reduce(sums);
    }
    if (absl::Status status = checkpoints_.advance({values[kWriting], values[kWriteFailed]}); !status.ok()) {
      return status;
    }
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
