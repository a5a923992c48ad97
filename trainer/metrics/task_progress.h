#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "trainer/config/config.h"

namespace distill::metrics {

// Shows the progress of a task that may take long: reading weights, an evaluation, writing a checkpoint. It prints
// nothing for two seconds; then it shows a bar on a terminal, rewritten at most five times a second and erased at the
// end, or without a terminal writes a line to the log every ten seconds. Ranks other than 0 have the style none. An
// update costs one reading of the clock, and nothing waits for a device.
class TaskProgress {
 public:
  // `unit`: what is counted; "bytes" are shown as GB. `style` as run.progress.
  TaskProgress(std::string name, int64_t total, std::string unit, config::ProgressStyle style);
  ~TaskProgress();
  TaskProgress(const TaskProgress&) = delete;
  TaskProgress& operator=(const TaskProgress&) = delete;

  void update(int64_t done); // since the start of the task
  void add(int64_t more) {
    update(done_ + more);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string name_, unit_;
  int64_t total_, done_ = 0;
  std::optional<int64_t> first_; // the value of the first update: some of it may have been done before
  std::FILE* stream_ = nullptr; // of the bar; null: lines in the log
  bool silent_ = false;
  bool shown_ = false;
  Clock::time_point began_, next_;
};

// The bar of a task: "[##........]  evaluation  26%  37/140 micro-batches  eta 0:25". `rate`: units a second; 0: not
// known yet.
std::string task_line(
    const std::string& name, int64_t done, int64_t total, const std::string& unit, double rate, int64_t columns,
    bool colour);

} // namespace distill::metrics
