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

// Samples [first, first + count).
struct SampleRange {
  int64_t first = 0;
  int64_t count = 1;
};

// Assembles the next batches on a thread of its own.
class Prefetcher {
 public:
  // `depth` >= 1: batches kept ready. `name`: of the thread, for people; at most 15 characters.
  Prefetcher(
      std::shared_ptr<const Dataset> dataset, const BatchSchedule& schedule, int64_t depth = 2,
      const char* name = "data");
  // Batch i is samples range_of(i); `batches` of them.
  Prefetcher(
      std::shared_ptr<const Dataset> dataset, std::function<SampleRange(int64_t)> range_of, int64_t batches,
      int64_t depth, const char* name);
  // Ends the thread, after the batch it is working on. A thread that is held up by its storage is not waited for longer
  // than kPatience: it is left behind, with the data set, and the process then ends without running destructors of
  // globals, which it could meet.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  static constexpr std::chrono::seconds kPatience{3};

  // The next batch in order. OutOfRange after the last one. An error of the thread comes at the batch it belongs
  // to, and again at each later call; an exception is rethrown here.
  absl::StatusOr<Batch> next();
  // The same, or nothing where it is not ready within `timeout`.
  absl::StatusOr<std::optional<Batch>> next_within(std::chrono::milliseconds timeout);

 private:
  // Shared with the thread, which may outlive the prefetcher.
  struct Shared {
    std::shared_ptr<const Dataset> dataset;
    std::function<SampleRange(int64_t)> range_of;
    int64_t batches = -1;
    size_t depth = 1;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<absl::StatusOr<Batch>> ready; // guarded by mutex, like all below
    std::exception_ptr failure;
    absl::Status end; // what every call gets once `ready` is empty and the thread has ended
    bool ended = false;
    bool stop = false;
  };

  static void work(Shared& shared);
  absl::StatusOr<Batch> take(std::unique_lock<std::mutex> lock);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

} // namespace distill::data
