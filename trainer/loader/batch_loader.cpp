#include "trainer/loader/batch_loader.h"

#include <ATen/ops/from_blob.h>

#include <type_traits>

#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

constexpr std::chrono::milliseconds kRetry{100}; // between two all-reduces of ranks that wait for data

// What the ranks tell each other before a global batch. Each gives its own numbers, and the sums replace them.
struct RankSums {
  int64_t asked_to_stop = 0; // ranks
  int64_t without_data = 0; // ranks whose micro-batches are not all there yet
  int64_t unreadable = 0; // ranks whose data cannot be read
  int64_t valid_tokens = 0;
  sharding::WritingRanks writing;
};
constexpr int64_t kNumSums = sizeof(RankSums) / sizeof(int64_t);
static_assert(std::is_trivially_copyable_v<RankSums> && kNumSums == 6);

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
    RankSums ranks;
    ranks.asked_to_stop = hooks_.asked_to_stop() ? 1 : 0;
    ranks.without_data = complete() ? 0 : 1;
    ranks.unreadable = own.ok() ? 0 : 1;
    for (const data::Batch& batch : collected_) {
      ranks.valid_tokens += batch.valid_tokens;
    }
    ranks.writing = hooks_.own_writing();
    if (mesh_.host != nullptr) {
      mesh_.host->all_reduce(at::from_blob(&ranks, {kNumSums}, at::kLong));
    }
    RETURN_IF_ERROR(hooks_.take_writing(ranks.writing));
    if (ranks.unreadable > 0) {
      return own.ok() ? absl::AbortedError(absl::StrFormat(
                            "%d other rank(s) could not read their data; their messages say why", ranks.unreadable))
                      : own;
    }
    if (ranks.asked_to_stop > 0) {
      return std::optional<GlobalBatch>();
    }
    if (ranks.without_data == 0) {
      return std::optional(GlobalBatch{std::exchange(collected_, {}), ranks.valid_tokens});
    }
  }
}

} // namespace distill::trainer
