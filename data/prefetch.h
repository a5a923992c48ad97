#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "data/batch_source.h"

namespace distill::data {

// The samples of each batch: batch i has samples [first_sample + i * stride, first_sample + i * stride + batch_size).
// For rank r of k with micro-batches of b samples: first_sample = position + r * b, stride = k * b.
struct BatchSchedule {
  int64_t first_sample = 0;
  int64_t batch_size = 1; // samples
  int64_t stride = 1; // samples
  int64_t batches = -1; // -1: without end
};

// Samples [first, first + count).
struct SampleRange {
  int64_t first = 0;
  int64_t count = 1;
};

// Assembles the next batches on a thread of its own, concurrently with training.
class Prefetcher {
 public:
  // `depth`: batches that are prefetched, at least 1. `name`: the name of the thread, at most 15 characters.
  Prefetcher(
      std::shared_ptr<const BatchSource> source, const BatchSchedule& schedule, int64_t depth = 2,
      const char* name = "data");
  // Batch i has samples range_of(i). `batches`: how many there are.
  Prefetcher(
      std::shared_ptr<const BatchSource> source, std::function<SampleRange(int64_t)> range_of, int64_t batches,
      int64_t depth, const char* name);
  // Waits until the thread has finished its current batch, but no longer than kJoinTimeout, since storage may not
  // answer. After the timeout the thread keeps the data set and is detached, and the process will exit without running
  // the destructors of globals, which the thread may still be using.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  static constexpr std::chrono::seconds kJoinTimeout{3};

  // Waits for the next batch in order. OutOfRange: there is none after the last one. An error that the thread met is
  // returned in place of the batch that it concerns, and by each later call; an exception is rethrown.
  absl::StatusOr<Batch> next();
  // The same; nullopt: the batch was not ready within `timeout`.
  absl::StatusOr<std::optional<Batch>> next_within(std::chrono::milliseconds timeout);

 private:
  // Shared with the thread, which may outlive the prefetcher.
  struct Shared {
    std::shared_ptr<const BatchSource> source;
    std::function<SampleRange(int64_t)> range_of;
    int64_t batches = -1;
    size_t depth = 1;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<absl::StatusOr<Batch>> ready; // guarded by mutex, as are the members below
    std::exception_ptr failure;
    absl::Status end; // the status of every call once `ready` is empty and the thread has ended
    bool ended = false;
    bool stop = false;
  };

  static void work(Shared& shared);
  absl::StatusOr<Batch> take(std::unique_lock<std::mutex> lock);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace distill::data
