#include "data/prefetch.h"

namespace distill::data {

Prefetcher::Prefetcher(const Dataset& dataset, const BatchSchedule& schedule, int64_t depth)
    : dataset_(dataset), schedule_(schedule), depth_(static_cast<size_t>(std::max<int64_t>(depth, 1))) {
  TORCH_CHECK(
      schedule.first_sample >= 0 && schedule.batch_size >= 1 && schedule.stride >= schedule.batch_size &&
          schedule.batches >= -1,
      "batch schedule: first_sample ", schedule.first_sample, ", batch_size ", schedule.batch_size, ", stride ",
      schedule.stride, ", batches ", schedule.batches);
  thread_ = std::thread([this] { work(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::work() {
  absl::Status end = absl::OutOfRangeError(absl::StrCat("all ", schedule_.batches, " batches have been read"));
  std::exception_ptr failure;
  try {
    for (int64_t i = 0; schedule_.batches < 0 || i < schedule_.batches; ++i) {
      absl::StatusOr<Batch> batch = dataset_.batch(schedule_.first_sample + i * schedule_.stride, schedule_.batch_size);
      if (!batch.ok()) {
        end = batch.status();
        break;
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < depth_; });
      if (stop_) {
        return;
      }
      ready_.push_back(std::move(batch));
      lock.unlock();
      changed_.notify_all();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    end_ = end;
    failure_ = failure;
    ended_ = true;
  }
  changed_.notify_all();
}

absl::StatusOr<Batch> Prefetcher::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || ended_; });
  return take(std::move(lock));
}

absl::StatusOr<std::optional<Batch>> Prefetcher::next_within(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return !ready_.empty() || ended_; })) {
    return std::optional<Batch>();
  }
  absl::StatusOr<Batch> batch = take(std::move(lock));
  return batch.ok() ? absl::StatusOr<std::optional<Batch>>(*std::move(batch)) : batch.status();
}

// With a batch ready, or the thread ended.
absl::StatusOr<Batch> Prefetcher::take(std::unique_lock<std::mutex> lock) {
  if (!ready_.empty()) {
    absl::StatusOr<Batch> batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch;
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  return end_;
}

} // namespace distill::data
