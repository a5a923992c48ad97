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
  kWithoutRows, // micro-batches that lack the teacher's rows
  kContributed, // BatchLoader::Numbers
  kNumSums = kContributed + std::tuple_size_v<BatchLoader::Numbers>
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
    const Numbers contribution = hooks_.contribute();
    at::Tensor sums = at::zeros({kNumSums}, at::kLong);
    int64_t* values = sums.mutable_data_ptr<int64_t>();
    values[kStop] = hooks_.asked_to_stop() ? 1 : 0;
    values[kMissing] = complete() ? 0 : 1;
    values[kFailed] = own.ok() ? 0 : 1;
    for (const data::Batch& batch : collected_) {
      values[kValidTokens] += batch.valid_tokens;
      values[kWithoutRows] += batch.teacher_rows_NW.defined() ? 0 : 1;
    }
    std::copy(contribution.begin(), contribution.end(), values + kContributed);
    if (mesh_.host != nullptr) {
      mesh_.host->all_reduce(sums);
    }
    Numbers contributed{};
    std::copy_n(values + kContributed, contributed.size(), contributed.begin());
    RETURN_IF_ERROR(hooks_.take_sums(contributed));
    if (values[kFailed] > 0) {
      return own.ok() ? absl::AbortedError(absl::StrFormat(
                            "%d other rank(s) could not read their data; their messages say why", values[kFailed]))
                      : own;
    }
    if (values[kStop] > 0) {
      return std::optional<GlobalBatch>();
    }
    if (values[kMissing] == 0) {
      // The teacher's pass is one of all ranks: it takes place for the whole batch, or not at all.
      for (data::Batch& batch : collected_) {
        batch.teacher_rows_NW = values[kWithoutRows] > 0 ? at::Tensor() : batch.teacher_rows_NW;
      }
      return std::optional(GlobalBatch{std::exchange(collected_, {}), values[kValidTokens]});
    }
  }
}

} // namespace distill::trainer
