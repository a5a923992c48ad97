#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Event.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/teacher_cache/manifest.h"
#include "trainer/teacher_cache/part_file.h"
#include "trainer/teacher_cache/rows_to_write.h"

namespace distill::teacher_cache {

// Writes parts on a thread of its own. A part is removed if it cannot be written, if one of its rows is wrong
// (new_row_problem, such as rows of a teacher that is not finite), or if it is not complete when this is destroyed.
class PartThread {
 public:
  PartThread(std::string folder, Manifest manifest);
  ~PartThread();
  PartThread(const PartThread&) = delete;
  PartThread& operator=(const PartThread&) = delete;

  // Queues rows; waits while kQueued are queued already. Nothing is written after an error. One thread calls it.
  void push(RowsToWrite rows);
  // Returns the first error so far; it names the file, or the document and the token.
  absl::Status status() const;
  // Waits until everything that was queued is on the disk. Returns the first error.
  absl::Status finish();
  // Counts the parts that have been completed.
  int64_t parts() const;
  int64_t bytes() const; // of rows, written so far

  using Clock = std::chrono::steady_clock;
  struct Times {
    int64_t batches = 0; // number of the batches given to push() whose rows have been on the host
    Clock::time_point first, last; // when the rows of the first and the last of them were there
    double idle_seconds = 0; // time that push() waited although the device had finished all that it was given
  };
  Times times() const;

  static constexpr size_t kQueued = 4;

 private:
  void work();
  void wait_for_room(std::unique_lock<std::mutex>& lock);
  absl::Status write(const RowsToWrite& rows);
  absl::Status check(const RowsToWrite& rows) const;
  void drop();

  const std::string folder_;
  const Manifest manifest_;
  const base::Digest cache_id_;
  const int64_t row_bytes_;
  std::optional<PartWriter> writer_; // used by the thread alone, as is the next one
  int64_t writing_ = -1; // number of the part that writer_ writes
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RowsToWrite> queue_; // guarded by mutex_, as are the members below
  bool busy_ = false, stop_ = false;
  int64_t parts_ = 0, bytes_ = 0;
  Times times_;
  std::shared_ptr<c10::Event> newest_; // of the rows that were queued last; null: their copy was complete
  absl::Status status_;
  std::thread thread_;
};

} // namespace distill::teacher_cache
