#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "data/dataset.h"

namespace distill::data {

// Batch i is samples [first_sample + i * stride, ... + batch_size). Rank r of k with micro-batches of b:
// first_sample = position + r * b, stride = k * b.
struct BatchSchedule {
  int64_t first_sample = 0;
  int64_t batch_size = 1; // samples
  int64_t stride = 1; // samples
  int64_t batches = -1; // -1: without end
};

// Assembles the next batches on a thread of its own.
class Prefetcher {
 public:
  // `dataset` outlives the prefetcher. `depth` >= 1: batches kept ready.
  Prefetcher(const Dataset& dataset, const BatchSchedule& schedule, int64_t depth = 2);
  // Ends the thread, after the batch it is working on.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next batch in order. OutOfRange after schedule.batches. An error of the thread comes at the batch it belongs
  // to, and again at each later call; an exception is rethrown here.
  absl::StatusOr<Batch> next();
  // The same, or nothing where it is not ready within `timeout`.
  absl::StatusOr<std::optional<Batch>> next_within(std::chrono::milliseconds timeout);

 private:
  void work();
  absl::StatusOr<Batch> take(std::unique_lock<std::mutex> lock);

  const Dataset& dataset_;
  const BatchSchedule schedule_;
  const size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<absl::StatusOr<Batch>> ready_; // guarded by mutex_, like all below
  std::exception_ptr failure_;
  absl::Status end_; // what every call gets once `ready_` is empty and the thread has ended
  bool ended_ = false;
  bool stop_ = false;
  std::thread thread_; // last: starts when all else exists
};

} // namespace distill::data
