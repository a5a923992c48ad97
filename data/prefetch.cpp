#include "data/prefetch.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace distill::data {

namespace {

// The samples of each batch of the schedule.
std::function<SampleRange(int64_t)> ranges(const BatchSchedule& schedule) {
  TORCH_CHECK(
      schedule.first_sample >= 0 && schedule.batch_size >= 1 && schedule.stride >= schedule.batch_size &&
          schedule.batches >= -1,
      "batch schedule: first_sample ", schedule.first_sample, ", batch_size ", schedule.batch_size, ", stride ",
      schedule.stride, ", batches ", schedule.batches);
  return [schedule](int64_t i) {
    return SampleRange{schedule.first_sample + i * schedule.stride, schedule.batch_size};
  };
}

} // namespace

Prefetcher::Prefetcher(
    std::shared_ptr<const BatchSource> source, const BatchSchedule& schedule, int64_t depth, const char* name)
    : Prefetcher(std::move(source), ranges(schedule), schedule.batches, depth, name) {}

Prefetcher::Prefetcher(
    std::shared_ptr<const BatchSource> source, std::function<SampleRange(int64_t)> range_of, int64_t batches,
    int64_t depth, const char* name)
    : shared_(std::make_shared<Shared>()) {
  shared_->source = std::move(source);
  shared_->range_of = std::move(range_of);
  shared_->batches = batches;
  shared_->depth = static_cast<size_t>(std::max<int64_t>(depth, 1));
  thread_ = std::thread([shared = shared_] { work(*shared); });
  ::pthread_setname_np(thread_.native_handle(), name);
}

Prefetcher::~Prefetcher() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kJoinTimeout, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
    return;
  }
  thread_.detach();
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

void Prefetcher::work(Shared& shared) {
  absl::Status end = absl::OutOfRangeError(absl::StrCat("all ", shared.batches, " batches have been read"));
  std::exception_ptr failure;
  try {
    for (int64_t i = 0; shared.batches < 0 || i < shared.batches; ++i) {
      const SampleRange range = shared.range_of(i);
      absl::StatusOr<Batch> batch = shared.source->batch(range.first, range.count);
      if (!batch.ok()) {
        end = batch.status();
        break;
      }
      std::unique_lock lock(shared.mutex);
      shared.changed.wait(lock, [&] { return shared.stop || shared.ready.size() < shared.depth; });
      if (shared.stop) {
        break;
      }
      shared.ready.push_back(std::move(batch));
      lock.unlock();
      shared.changed.notify_all();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(shared.mutex);
    shared.end = end;
    shared.failure = failure;
    shared.ended = true;
  }
  shared.changed.notify_all();
}

absl::StatusOr<Batch> Prefetcher::next() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return !shared_->ready.empty() || shared_->ended; });
  return take(std::move(lock));
}

absl::StatusOr<std::optional<Batch>> Prefetcher::next_within(std::chrono::milliseconds timeout) {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->changed.wait_for(lock, timeout, [&] { return !shared_->ready.empty() || shared_->ended; })) {
    return std::optional<Batch>();
  }
  absl::StatusOr<Batch> batch = take(std::move(lock));
  return batch.ok() ? absl::StatusOr<std::optional<Batch>>(*std::move(batch)) : batch.status();
}

// Takes the next batch. A batch must be ready, or the thread must have ended.
absl::StatusOr<Batch> Prefetcher::take(std::unique_lock<std::mutex> lock) {
  if (!shared_->ready.empty()) {
    absl::StatusOr<Batch> batch = std::move(shared_->ready.front());
    shared_->ready.pop_front();
    lock.unlock();
    shared_->changed.notify_all();
    return batch;
  }
  if (shared_->failure) {
    std::rethrow_exception(shared_->failure);
  }
  return shared_->end;
}

} // namespace distill::data
